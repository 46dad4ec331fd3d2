"""Run commands of gdsckpt in this process, and make what they look at."""

from dataclasses import dataclass

import torch

import gdsckpt
from gdsckpt.cli.main import main

SMALL_CHUNKS = {"chunk_bytes": "64KiB"}


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def run_here(capsys, *arguments):
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exc:  # how argparse ends
        code = exc.code or 0
    captured = capsys.readouterr()
    return Done(int(code), captured.out, captured.err)


def small_state():
    return {
        "model": {
            "layers": [
                {"weight": torch.arange(60_000.0), "bias": torch.ones(3, dtype=torch.bfloat16)}
            ],
            "norm": torch.full((2, 3), 2.0).t(),
        },
        "step": 7,
    }


def save_small(path):
    gdsckpt.save(small_state(), path, config=SMALL_CHUNKS)
    return path


def flip(path, offset, bit=0):
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1 << bit
    path.write_bytes(raw)
