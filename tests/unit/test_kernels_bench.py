from bench import device_crc

REPORT = {
    "device": "NVIDIA H200",
    "total_bytes": 4 << 30,
    "compile_s": 2.04,
    "copy": {"call_s": 0.002, "bytes_per_s": 2.15e12},
    "rows": [
        {
            "piece_bytes": 16 << 20,
            "num_pieces": 256,
            "threads": 128,
            "call_s": 0.0021,
            "bytes_per_s": 2.0452e12,
            "right": False,
        }
    ],
}


def test_table_shows_every_row_with_its_units():
    head, _, _, _, row = device_crc.table(REPORT).splitlines()
    assert head.startswith("CRC-32 on NVIDIA H200, 4 GiB; a copy on the device reads 2150 GB/s;")
    assert row == "| 16384 KiB | 256 | 128 | 2.10 | 2045.2 | NO |"


def test_main_without_such_a_device_says_so(capsys):
    assert device_crc.main(["--device", "999"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("bench: The kernels cannot be measured: torch ")
    assert shown.err.endswith("finds no CUDA device 999.\n")
