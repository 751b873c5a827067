"""Lists every JSON document by its name, that of a command or a file. A row adds one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from autotune.bisect.document import Bisected
from autotune.bisect.preview import BisectPreview
from autotune.check.document import CheckDocument, RuleDocument, RulesDocument
from autotune.compare.comparison import Comparison
from autotune.diagnose.document import Diagnosed, FixDocument
from autotune.doctor.checks import DoctorDocument
from autotune.errors import ErrorDocument
from autotune.estimate.document import EstimateDocument, RefusedByMegatron
from autotune.export.document import Exported, StudyFile, Tracked
from autotune.gap.document import GapDocument
from autotune.importing.account import ImportDocument
from autotune.importing.recorded import RecordDocument
from autotune.init.starter import InitDocument
from autotune.plan.document import PlanDocument
from autotune.probe.document import ProbeDocument
from autotune.report.document import Document as Report
from autotune.schemas.plain import CompletionDocument, Name, SchemaList
from autotune.studies.gathered import Gathered
from autotune.tuning.events import Event
from autotune.tuning.preview import Preview
from autotune.tuning.study_status import StudyStatus
from autotune.twin.document import TwinDocument
from trainer.burst import Outcome


@dataclass(frozen=True, kw_only=True)
class Document:
    """One kind of JSON document: any of `types`.

    `commands` print it with --json; one may include an option, as `run --dry-run` does. `of_file`: True if `summary`
    starts with a file's name.
    """

    types: tuple[Any, ...]
    summary: str
    commands: tuple[str, ...] = ()
    of_file: bool = False


DOCUMENTS: dict[Name, Document] = {
    "report": Document(types=(Report,), summary="report.json of a study", of_file=True, commands=("run", "report")),
    "journal": Document(types=get_args(Event), summary="a line of journal.jsonl; event names its kind"),
    "outcome": Document(types=(Outcome,), summary="outcome.json of a burst", of_file=True),
    "dry-run": Document(types=(Preview,), summary="what would be tried first", commands=("run --dry-run",)),
    "status": Document(types=(StudyStatus,), summary="where a study stands", commands=("status", "watch")),
    "studies": Document(types=(Gathered,), summary="the studies of a folder", commands=("studies",)),
    "check": Document(
        types=(CheckDocument, RuleDocument, RulesDocument),
        summary="findings of a recipe, or rules",
        commands=("check",),
    ),
    "estimate": Document(
        types=(EstimateDocument, RefusedByMegatron), summary="predicted memory and time", commands=("estimate",)
    ),
    "plan": Document(types=(PlanDocument,), summary="the best layouts by estimate", commands=("plan",)),
    "probe": Document(types=(ProbeDocument,), summary="micro-benchmarks of a cluster", commands=("probe",)),
    "diagnose": Document(types=(Diagnosed, FixDocument), summary="walls of traces, or a fix", commands=("diagnose",)),
    "compare": Document(types=(Comparison,), summary="what moved between two traces or trials", commands=("compare",)),
    "gap": Document(types=(GapDocument,), summary="from a measured step to an attainable one", commands=("gap",)),
    "bisect": Document(types=(Bisected,), summary="which differences are guilty", commands=("bisect",)),
    "bisect-plan": Document(
        types=(BisectPreview,), summary="what a bisection would cost", commands=("bisect --dry-run",)
    ),
    "export": Document(
        types=(Exported, Tracked, StudyFile), summary="a recipe or a study for another tool", commands=("export",)
    ),
    "import": Document(types=(ImportDocument,), summary="a recipe, and what became of the file", commands=("import",)),
    "record": Document(types=(RecordDocument,), summary="what a launcher would start", commands=("record",)),
    "init": Document(types=(InitDocument,), summary="a recipe to start from", commands=("init",)),
    "twin": Document(types=(TwinDocument,), summary="what a study learned of its cluster", commands=("twin",)),
    "doctor": Document(types=(DoctorDocument,), summary="what this machine has", commands=("doctor",)),
    "completion": Document(types=(CompletionDocument,), summary="a shell's script", commands=("completion",)),
    "schema": Document(types=(SchemaList,), summary="the names of these documents", commands=("schema",)),
    "error": Document(types=(ErrorDocument,), summary="of any command that fails"),
}
