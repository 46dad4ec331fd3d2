"""Published sizes of checkpoints, and which parts of the state explain each."""

from __future__ import annotations

from dataclasses import dataclass

from gdsckpt.planning.shapes import TransformerShape

GB = 10**9
GIB = 2**30

_VOCABULARY = 128_256


@dataclass(frozen=True, slots=True)
class Published:
    """A size that was published, and the parts that explain it.

    Attributes:
        name: What was saved, and who says so.
        said: The figure as it is written.
        published_bytes: The figure in bytes, as it has to be read.
        num_parameters: Parameters.
        counts: The parts that it counts, with their bytes per parameter.
        note: How it was read; what is not certain.
        source: Where it stands.
        as_of: When it was read, ISO 8601.
    """

    name: str
    said: str
    published_bytes: float
    num_parameters: int
    counts: tuple[tuple[str, float], ...]
    note: str
    source: str
    as_of: str

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes per parameter of the parts that it counts."""
        return sum(nbytes for _, nbytes in self.counts)

    @property
    def computed_bytes(self) -> float:
        """What these parts give, in bytes."""
        return self.num_parameters * self.bytes_per_parameter

    @property
    def difference(self) -> float:
        """How far the published figure is above the computed one; 0.01 is 1 %."""
        return self.published_bytes / self.computed_bytes - 1


_WEIGHTS = ("16-bit weights", 2.0)
_MASTER = ("float32 master copy", 4.0)
_FIRST = ("float32 first moment", 4.0)
_SECOND = ("float32 second moment", 4.0)
_ALL = (_WEIGHTS, _MASTER, _FIRST, _SECOND)

_RULES = "MLPerf Storage v2.0, Submission_guidelines.md, table 2; sizes as DLIO computes them"
_BINARY = "the benchmark divides by 1024 three times and writes GB: it means GiB"


def mlperf_shape(name: str) -> TransformerShape:
    """Give the shape of a model of MLPerf Storage v2.0: ``8B``, ``70B``, ``405B`` or ``1T``.

    Source: its Submission_guidelines.md, table 2. Heads are as wide as whole numbers allow, as
    DLIO computes them. For 1T that table has 32 heads of keys and values; the size it gives
    needs as many as heads, see :func:`published`.
    """
    hidden, ffn, heads, kv_heads, layers = {
        "8B": (4096, 14336, 32, 8, 32),
        "70B": (8192, 28672, 128, 8, 80),
        "405B": (16384, 53248, 128, 8, 126),
        "1T": (25872, 98304, 192, 32, 128),
    }[name]
    return TransformerShape(
        hidden=hidden,
        ffn=ffn,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_width=hidden // heads,
        vocabulary=_VOCABULARY,
    )


def mlperf_parameters(name: str) -> int:
    """Give the parameters of a model of MLPerf Storage v2.0.

    They are those of DLIO, whose queries and outputs are as wide as the model even where the
    heads do not divide it.
    """
    shape = mlperf_shape(name)
    lost = shape.hidden - shape.heads * shape.head_width
    return shape.num_parameters + 2 * lost * shape.hidden * shape.layers


def published() -> tuple[Published, ...]:
    """Give the published sizes that people compare their own with, each with what it counts."""
    mlperf = tuple(
        Published(
            f"{name}, MLPerf Storage v2.0", said, nbytes, parameters, _ALL, note, _RULES, "2025-06"
        )
        for name, said, nbytes, parameters, note in (
            ("8B", "105 GB", 105 * GIB, mlperf_parameters("8B"), _BINARY),
            (
                "70B",
                "912 GB",
                912 * GIB,
                mlperf_parameters("70B"),
                f"{_BINARY}: 912 GiB are the 980 GB of the rule; its 70B has 128 heads of 64, so "
                "69.9B parameters, not 70.6B",
            ),
            ("405B", "5.29 TB", 5290 * GIB, mlperf_parameters("405B"), f"{_BINARY}, 5290 of them"),
            ("1T", "18 TB", 18_000 * GB, _parameters_of_1t(), _NOTE_1T),
        )
    )
    return (*_seventy_billion(), *mlperf)


_NOTE_1T = (
    "with as many heads of keys and values as heads, as in DLIO's own llama_1t.yaml, it is 1.33T "
    "parameters and 18.6 TB; with the 32 of the rules' table 1.18T and 16.6 TB. Decimal TB: the "
    "figure has two digits and lies between"
)


def _parameters_of_1t() -> int:
    """Give the 1T model with full attention, whose keys and values are as wide as the model."""
    shape = mlperf_shape("1T")
    width = shape.kv_heads * shape.head_width
    return mlperf_parameters("1T") + 2 * (shape.hidden - width) * shape.hidden * shape.layers


def _seventy_billion() -> tuple[Published, ...]:
    """Give the figures for 70 billion parameters that do not agree with each other."""
    return (
        Published(
            "70B, rule of 14 bytes",
            "980 GB",
            980 * GB,
            70 * 10**9,
            _ALL,
            "all that mixed-precision AdamW needs to go on, to the bit",
            "Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1, without gradients",
            "2019-10",
        ),
        Published(
            "Llama 3 70B, HyperPod",
            "521 GB",
            521 * GIB,
            70 * 10**9,
            (_FIRST, _SECOND),
            "70e9 x 8 bytes are 521.5 GiB, written GB: the two moments, without weights and master "
            "copy. Which parts it counts is inferred: NVIDIA's article on nvCOMP (2026-04) has "
            "the same figure for exactly these",
            "Amazon SageMaker HyperPod documentation",
            "2025-09",
        ),
        Published(
            "70B, rule of 12 bytes",
            "840 GB",
            840 * GB,
            70 * 10**9,
            (_MASTER, _FIRST, _SECOND),
            "float32 weights and moments; the 16-bit weights are made from the master copy, or "
            "training is in float32 alone",
            "rule of thumb of storage vendors",
            "2025",
        ),
    )
