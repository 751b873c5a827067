"""Runs inside the user's own trainer: opens named ranges, and records the phase of each rank and its memory.

It is found because its folder is first in PYTHONPATH. It changes no file of the trainer and, with one exception, no
result: Megatron warms up its fused functions with random numbers of the micro batch's shape, and draws its first
weights after that (those of the router on GPUs, all of them on CPUs). The random generators are reset in between, so
that recipes with other micro batches start with the same weights and their losses can be compared.

Python imports a module of this name when it starts. Only the training process acts: a rank's children (data loaders,
compilers) inherit the environment and do nothing. A sitecustomize of the user's own runs as if this one were not there.
Imports nothing of this project except `ranges.py`, by its path, and `moe_autotune_starts.py` beside it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
OUT = os.environ.get("MOE_AUTOTUNE_OUT")  # the burst's folder `ranks`
RECORD = os.environ.get("MOE_AUTOTUNE_RECORD")  # file to record the start of this run in, for `import`
RECORDS = 200  # records that a rank's flight recorder keeps
# least time between writes of a known phase: the folder may be on a file system that all nodes share
WRITES_EVERY_S = 2.0
HERE = os.path.dirname(os.path.abspath(__file__))
RANGES_FILE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "megatron", "ranges.py")

# (module, class or None, attribute, phase that its call starts)
PHASES = (
    ("megatron.core.pipeline_parallel.schedules", None, "forward_step", "forward"),
    ("megatron.core.pipeline_parallel.schedules", None, "backward_step", "backward"),
    ("megatron.core.optimizer.optimizer", "ChainedOptimizer", "step", "optimizer"),
    ("megatron.core.optimizer.optimizer", "MixedPrecisionOptimizer", "step", "optimizer"),
    ("megatron.core.optimizer.optimizer", "FP32Optimizer", "step", "optimizer"),
)
# importing one of these starts phase init
BEGINS = ("megatron.training.initialize", "megatron.bridge.training.initialize")
MODELS = (  # model classes: process groups exist when one is built
    ("megatron.core.models.gpt.gpt_model", "GPTModel"),
    ("megatron.core.models.mamba.mamba_model", "MambaModel"),
    ("megatron.core.models.hybrid.hybrid_model", "HybridModel"),
)
WARM_UP = "_warmup_jit_function"  # function of the modules in BEGINS
STEPS = (("megatron.training.training", "train_step"), ("megatron.bridge.training.train", "train_step"))


def chain() -> None:
    """Runs the user's own sitecustomize that this one hides, if there is one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    others = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)


def turn_on_recorder(out: str) -> None:
    """Turns on torch's flight recorder, which NCCL's watchdog writes when it ends the job.

    Variables that the user has set are kept. The older variable names are read up to torch 2.12; 2.13 warns about them.
    """
    from importlib import metadata

    wanted = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": os.path.join(out, "nccl_dump_rank_")}
    wanted["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
    if tuple(map(int, metadata.version("torch").split(".")[:2])) < (2, 13):
        wanted["TORCH_NCCL_TRACE_BUFFER_SIZE"] = wanted["TORCH_FR_BUFFER_SIZE"]
        wanted["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = wanted["TORCH_FR_DUMP_TEMP_FILE"]
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def wait_to_be_asked(rank: Rank) -> None:
    """Starts a thread that waits until a process of this machine asks for the flight recorder (`stacks.py`) by an
    abstract socket. A thread is needed because a rank that hangs in a collective runs no Python."""
    import socket
    import threading

    requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    requests.bind(f"\0moe-autotune-{os.getpid()}")

    def wait() -> None:
        while True:
            requests.recv(1)
            try:
                write_flight(rank)
            except Exception as error:
                print(f"moe-autotune: no flight recorder: {error}", file=sys.stderr)

    threading.Thread(target=wait, daemon=True, name="moe-autotune").start()


def write_flight(rank: Rank) -> None:
    """Writes the rank's last collectives to `rank<r>.flight.json`: those of NCCL, or of gloo if NCCL has none."""
    import json

    c10d = sys.modules["torch._C._distributed_c10d"]
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(c10d, name, None)
        found = json.loads(dump(True, False)) if dump else {}
        if found.get("entries"):
            found["entries"] = found["entries"][-RECORDS:]
            path = os.path.join(rank.out, f"rank{rank.rank}.flight.json")
            with open(f"{path}.part", "w") as file:
                json.dump(found, file)
            os.replace(f"{path}.part", path)
            return


class Rank:
    """Writes this rank's files: `rank<r>.pid`, `rank<r>.phase`, and `rank<r>.usage.json` after the last measured step
    or at an earlier exit."""

    def __init__(self, out: str, rank: int) -> None:
        self.out, self.rank = out, rank
        self.last_step = int(os.environ.get("MOE_AUTOTUNE_LAST_STEP", "0"))
        self.cpu_s: list[float] = []  # CPU seconds of each train_step in this process
        self.file: int | None = None
        self.acts: bool | None = None  # whether this process is the one that trains; None: not yet known
        self.reported = False
        self.phase = self.written = ""
        self.written_at = 0.0
        self.seen: set[str] = set()
        self.limits: tuple[int, int] | None = None  # memory limits before the recipe's was set
        self.baseline_kib = 0  # resident memory before training: the interpreter and its imports

    def claim(self) -> bool:
        """Returns whether this process trains: true for the first process of the rank that calls it."""
        if self.acts is None and is_child(self.rank):
            self.acts = False
        if self.acts is None:
            try:
                with open(os.path.join(self.out, f"rank{self.rank}.pid"), "x") as file:
                    file.write(str(os.getpid()))
                self.file = os.open(os.path.join(self.out, f"rank{self.rank}.phase"), os.O_CREAT | os.O_WRONLY, 0o644)
                self.acts = True
            except OSError:
                self.acts = False
        return self.acts

    def enter(self, phase: str) -> None:
        """Sets the phase, and writes it if it is new to the rank or WRITES_EVERY_S have passed.

        A phase that was not written is written at an exception or at exit.
        """
        import time

        if phase == self.phase or not self.claim():
            return
        self.phase = phase
        if phase not in self.seen or time.monotonic() - self.written_at > WRITES_EVERY_S:
            self.seen.add(phase)
            self.written_at = time.monotonic()
            self.write_phase()

    def write_phase(self) -> None:
        if self.file is not None and self.phase != self.written:
            self.written = self.phase
            os.pwrite(self.file, f"{self.phase:<12}".encode(), 0)

    def begin(self) -> None:
        """Records the resident memory before training, which the recipe does not cause.

        On CPUs, limits what the rank may allocate from then on.
        """
        import resource

        if self.baseline_kib:
            return
        self.baseline_kib = status_kib("VmRSS")
        if limit := os.environ.get("MOE_AUTOTUNE_LIMIT_GIB"):
            most = int(status_kib("VmData") * 1024 + float(limit) * 2**30)
            self.limits = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (most, self.limits[1]))

    def stepped(self, cpu_s: float) -> None:
        self.cpu_s.append(cpu_s)
        if len(self.cpu_s) == self.last_step:
            self.write_usage()
            self.lift_limit()

    def lift_limit(self) -> None:
        """Lifts the memory limit, since memory that a profiler allocates is not the recipe's."""
        import resource

        if self.limits is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self.limits)

    def write_usage(self) -> None:
        """Writes, once, the memory in GiB: the peak of the allocator's reserved memory, GPU memory outside the
        allocator, and the process's peak resident set above that before training; also CPU times and versions."""
        import json

        if self.reported or not self.claim():
            return
        self.reported = True
        usage: dict[str, Any] = {"rank": self.rank, "cpu_s": self.cpu_s, "versions": versions()}
        usage["resident_gib"] = max(0, status_kib("VmHWM") - self.baseline_kib) / 2**20
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            usage["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
            usage["outside_gib"] = outside_gib(torch)
        path = os.path.join(self.out, f"rank{self.rank}.usage.json")
        with open(f"{path}.part", "w") as file:
            json.dump(usage, file)
        os.replace(f"{path}.part", path)


def is_child(rank: int) -> bool:
    """Returns whether a Python process of the same rank started this one: a helper of the trainer, not the trainer."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/comm") as file:
            python = file.read().startswith(("python", "pt_"))
        with open(f"/proc/{parent}/environ", "rb") as file:
            return python and f"RANK={rank}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def status_kib(field: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def outside_gib(torch: Any) -> float | None:
    """Returns the GPU memory that is neither free nor the allocator's, GiB; it includes that of other processes.

    None if the GPU does not answer.
    """
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError:
        return None
    return float(max(total - free - torch.cuda.memory_reserved(), 0) / 2**30)


def versions() -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in ("torch", "megatron-core", "megatron-bridge", "transformer-engine", "deep-ep"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def load_ranges() -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("_moe_autotune_ranges", RANGES_FILE)
    if spec is None or spec.loader is None:
        raise ImportError(RANGES_FILE)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up annotations there
    spec.loader.exec_module(module)
    return module


class PatchOnImport:
    """An import hook that lets a module load unchanged and then modifies it."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.ranges = rank, load_ranges()
        self.touched = {
            *(module for module, *_ in (*PHASES, *STEPS)),
            *BEGINS,
            *(module for module, _ in MODELS),
            *self.ranges.MODULES,
            "torch.profiler.profiler",
        }

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self.touched:
            return None
        for finder in sys.meta_path:
            found: Any = None if finder is self else finder.find_spec(name, path, target)
            if found is not None and found.loader is not None:
                found.loader = Loader(found.loader, self.touch)
                return found
        return None

    def touch(self, module: Any) -> None:
        name = module.__name__
        if name == "torch.profiler.profiler":
            without_stacks(module.profile)
            return
        if not self.rank.claim():
            return
        if name in BEGINS:
            self.rank.enter("init")
            wait_to_be_asked(self.rank)
            patch(module, None, WARM_UP, keeping_generators)
        self.ranges.name_ranges(module, when=recording)
        for owner, class_name, attribute, phase in PHASES:
            if owner == name:
                patch(module, class_name, attribute, lambda f, phase=phase: entering(self.rank, phase, f))
        for owner, class_name in MODELS:
            if owner == name:
                patch(module, class_name, "__init__", lambda f: counting_memory(self.rank, f))
        for owner, attribute in STEPS:
            if owner == name:
                patch(module, None, attribute, lambda f: counted(self.rank, f))


class Loader:
    def __init__(self, loader: Any, touch: Function) -> None:
        self.loader, self.touch = loader, touch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        try:
            self.touch(module)
        except Exception as error:  # an unnamed range is acceptable, a trainer that does not start is not
            print(f"moe-autotune: {module.__name__} is not instrumented: {error}", file=sys.stderr)


def patch(module: Any, class_name: str | None, attribute: str, wrap: Function) -> None:
    owner = getattr(module, class_name, None) if class_name else module
    function = None if owner is None else owner.__dict__.get(attribute)
    if callable(function):
        setattr(owner, attribute, wrap(function))


def entering(rank: Rank, phase: str, function: Function) -> Function:
    import functools

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        rank.enter(phase)
        try:
            return function(*args, **kwargs)
        except BaseException:
            rank.write_phase()
            raise

    return inside


def keeping_generators(function: Function) -> Function:
    import functools

    @functools.wraps(function)
    def warm_up(*args: Any, **kwargs: Any) -> Any:
        torch = sys.modules["torch"]
        on_gpu = torch.cuda.is_initialized()
        held = torch.random.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else None
        try:
            return function(*args, **kwargs)
        finally:
            torch.random.set_rng_state(held[0])
            if on_gpu:
                torch.cuda.set_rng_state(held[1])

    return warm_up


def counting_memory(rank: Rank, function: Function) -> Function:
    import functools

    @functools.wraps(function)
    def build(*args: Any, **kwargs: Any) -> Any:
        rank.begin()
        return function(*args, **kwargs)

    return build


def counted(rank: Rank, function: Function) -> Function:
    import functools
    import time

    @functools.wraps(function)
    def step(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        result = function(*args, **kwargs)
        rank.stepped(time.process_time() - started)
        return result

    return step


def recording() -> bool:
    """Returns whether a range would be recorded: torch.profiler is active, or Nsight Systems profiles this rank."""
    profiler = sys.modules.get("torch.autograd.profiler")
    return bool(getattr(profiler, "_is_profiler_enabled", False)) or "NSYS_PROFILING_SESSION_ID" in os.environ


def without_stacks(profile: Any) -> None:
    """Turns off Python stacks, which make a trace ten times as large and its steps slower, and which nothing here
    reads."""
    original = profile.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["with_stack"] = False
        original(self, *args, **kwargs)

    profile.__init__ = __init__


def inject(out: str) -> None:
    import atexit
    import faulthandler
    import signal

    rank = Rank(out, int(os.environ["RANK"]))
    turn_on_recorder(out)
    sys.meta_path.insert(0, PatchOnImport(rank))
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # writes the stacks of all threads on request

    def at_exit() -> None:
        rank.write_phase()
        if "torch" in sys.modules:
            rank.write_usage()

    atexit.register(at_exit)


if OUT and "RANK" in os.environ:
    try:
        inject(OUT)
    except Exception as error:
        print(f"moe-autotune: nothing is instrumented: {error}", file=sys.stderr)
if RECORD and os.environ.get("RANK", "0") == "0":
    from moe_autotune_starts import Starts  # pyrefly: ignore[missing-import]  # in the folder of this file

    sys.meta_path.insert(0, Starts(RECORD, Loader, patch))
chain()
