"""The judged rows of a source, which split each query belongs to, and the guard of evaluation queries."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from steps.core.leakage import EVALUATION_SPLITS, evaluation_keys
from steps.core.texts import fold
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, LeftOut, possible_grade
from steps.ingest.source import UNLABELLED, Document, Judgement, Query, Satisfaction, SourceData, seeded_order

DEV_FRACTION = 0.2  # of the train queries becomes dev where no judgements are dev's


class JudgedRows:
    """What was read of a source with judgements, by its own ids."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.documents: dict[str, Document] = {}
        self.queries: dict[str, Query] = {}
        self.grades: dict[tuple[str, str], int] = {}  # by query and document; from 1 on relevant
        self.satisfaction: dict[tuple[str, str], int] = {}  # second labels
        self.named: dict[str, str] = {}  # the split whose judgements name a query

    def add_document(self, doc_id: str, title: str, content: str, topic: str = "") -> None:
        """Add one document; Defect `empty_text` or `duplicate_id`."""
        if not title and not content:
            raise Defect("empty_text")
        if doc_id in self.documents:
            raise Defect("duplicate_id")
        self.documents[doc_id] = Document(f"{self.name}/{doc_id}", self.name, title, topic, content)

    def add_query(self, query_id: str, text: str, source: str, line: int) -> bool:
        """Add one query; tells whether it is new, as another file may have it with the same text. Defect as above."""
        if not fold(text):
            raise Defect("empty_text")
        previous = self.queries.get(query_id)
        if previous and (previous.source == source or previous.text != text):
            raise Defect("duplicate_id")
        if not previous:
            self.queries[query_id] = Query(f"{self.name}/{query_id}", self.name, text, UNLABELLED, source, line)
        return not previous

    def name_query(self, query_id: str, split: str) -> None:
        """Note that judgements of a split name a query, even a broken row; LeftOut where another split did."""
        if self.named.setdefault(query_id, split) != split:
            raise LeftOut("query_in_two_splits")

    def add_judgement(self, query_id: str | None, doc_id: str | None, grade: int) -> tuple[str, str]:
        """Add one judgement; returns its pair, or raises a Defect."""
        if query_id is None or query_id not in self.queries:
            raise Defect("unknown_query")
        if doc_id is None or doc_id not in self.documents:
            raise Defect("unknown_document")
        possible_grade(grade)
        if (query_id, doc_id) in self.grades:
            raise Defect("duplicate_judgement")
        self.grades[query_id, doc_id] = grade
        return query_id, doc_id

    def splits(self) -> dict[str, str]:
        """Split of every query with a relevant document, in the order of the files."""
        return {query_id: self.named[query_id] for (query_id, _), grade in self.grades.items() if grade > 0}

    def settle(self, data: SourceData, held_out: Mapping[str, str], *, seed: int, relevant_from: int = 1) -> None:
        """Give `data` the documents, queries and judgements.

        A query belongs to the split whose judgements name it; without dev judgements a seeded share DEV_FRACTION of
        the train queries becomes dev. A query that no judgement names is unlabelled unless it is `held_out` (original
        id to the reason under which it is counted). A dev or test query without a relevant document stays for its
        pairs alone, a training query is left out. Grades of training queries below `relevant_from` become 0.
        """
        data.documents = list(self.documents.values())
        splits = self.splits()
        if "dev" not in splits.values():
            data.facts["dev_from_train"] = self._carve_dev(splits, seed)
        pairs_alone = {
            query_id: self.named[query_id]
            for query_id, _ in self.grades
            if query_id not in splits and self.named.get(query_id) in EVALUATION_SPLITS
        }
        if pairs_alone:
            splits |= pairs_alone
            data.facts["queries_without_relevant_document"] = len(pairs_alone)
        left_out: Counter[str] = Counter()
        for query_id, query in self.queries.items():
            if query_id in splits:
                data.queries.append(query._replace(split=splits[query_id]))
            elif query_id in self.named or query_id in held_out:
                split = self.named.get(query_id)
                left_out[held_out[query_id] if split is None else "without_relevant_document"] += 1
                if split is None or split in EVALUATION_SPLITS:
                    data.held_out.add(fold(query.text))
            else:
                data.queries.append(query)
        if left_out:
            data.facts["queries_left_out"] = dict(left_out)
        if not_relevant := sum(grade <= 0 for grade in self.grades.values()):
            data.facts["judgements_not_relevant"] = not_relevant
        below = 0
        for pair, grade in self.grades.items():
            if split := splits.get(pair[0]):
                is_below = split == "train" and 0 < grade < relevant_from
                below += is_below
                query_id, doc_id = f"{self.name}/{pair[0]}", f"{self.name}/{pair[1]}"
                data.judgements.append(Judgement(query_id, self.name, doc_id, 0 if is_below else grade, split))
                if pair in self.satisfaction:
                    data.satisfaction.append(Satisfaction(query_id, doc_id, self.satisfaction[pair]))
        if below:
            data.facts["train_judgements_below_relevant_from"] = below

    def _carve_dev(self, splits: dict[str, str], seed: int) -> int:
        """Turn a seeded share of the train queries into dev, in place; never one that spells a test query."""
        keys = {query_id: fold(self.queries[query_id].text) for query_id in splits}
        test_keys = {keys[query_id] for query_id, split in splits.items() if split == "test"}
        train = [query_id for query_id, split in splits.items() if split == "train"]
        allowed = [query_id for query_id in train if keys[query_id] not in test_keys]
        chosen = seeded_order(allowed, seed, f"dev of {self.name}")[: round(DEV_FRACTION * len(train))]
        splits.update(dict.fromkeys(chosen, "dev"))
        return len(chosen)


def without_evaluation_texts(queries: Sequence[Query], held_out: Set[str], rejects: Rejects) -> list[Query]:
    """Queries less training and unlabelled ones that spell a dev or test query, and dev ones that spell a test query.

    `held_out`: folded texts of evaluation queries that are not among them. What is left out becomes a reject.
    """
    evaluation = evaluation_keys(query._asdict() for query in queries).keys() | held_out
    test = evaluation_keys(query._asdict() for query in queries if query.split == "test")
    allowed = []
    for query in queries:
        if query.split not in EVALUATION_SPLITS and fold(query.text) in evaluation:
            rejects.add(query.source, query.line, "evaluation_query_text", query.text, defect=False)
        elif query.split == "dev" and fold(query.text) in test:
            rejects.add(query.source, query.line, "test_query_text", query.text, defect=False)
        else:
            allowed.append(query)
    return allowed
