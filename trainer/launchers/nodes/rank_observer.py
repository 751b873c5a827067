"""State of the ranks on several nodes, by the reports of the nodes' keepers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from trainer.failures import Death
from trainer.launchers.mailbox import POLL_S
from trainer.launchers.nodes import folder
from trainer.launchers.rank_observer import StackRequest

_ANSWER_S = 10.0  # time for keepers to pass the request on, over a shared file system


@dataclass(kw_only=True)
class NodeRankObserver:
    """Observes ranks of several nodes through their keepers; `trainer.launchers.rank_observer.RankObserver` documents
    its methods."""

    control: Path
    nodes: int
    ranks_per_node: int
    _questions: int = field(default=0, init=False)

    def death(self, rank: int, *, seen_at_s: float) -> Death | None:
        end = folder.read(folder.rank_end_path(self.control, rank), folder.Ended)
        return None if end is None else Death(at_s=end.at_s, code=end.code)

    def kill(self, ranks: Iterable[int]) -> None:
        """Does nothing: the keepers end the ranks of their nodes themselves."""

    def ask_for_stacks(self, ranks: Iterable[int]) -> StackRequest:
        ranks = sorted(ranks)
        question, self._questions = self._questions, self._questions + 1
        folder.write(folder.stacks_path(self.control, question), folder.StacksAsked(ranks=ranks))
        waited = {rank // self.ranks_per_node for rank in ranks}
        answers: list[folder.StacksAnswer] = []
        give_up = time.monotonic() + _ANSWER_S
        while waited and time.monotonic() < give_up:
            for node in sorted(waited):
                answer = folder.read(folder.stacks_answer_path(self.control, question, node), folder.StacksAnswer)
                if answer is not None:
                    answers.append(answer)
                    waited.discard(node)
            time.sleep(POLL_S)
        return StackRequest(
            ranks=frozenset(rank for answer in answers for rank in answer.asked),
            stopped=frozenset(rank for answer in answers for rank in answer.stopped),
        )

    def oom_kills(self) -> int:
        paths = (folder.oom_path(self.control, node) for node in range(self.nodes))
        return sum(int(path.read_text()) for path in paths if path.exists())
