"""What KvikIO's texts mean; as seen from KvikIO 26.10 where nothing else is said."""

import errno
import re

import pytest
from fake_cuda import stand_ins

from gdsckpt.engine.kvikio_errors import CUFILE_CODES, Request, error_of, short_transfer
from gdsckpt.errors import CudaError, CuFileError, ShortTransferError, StorageError

REQUEST = Request(0x7F0000000000, 4096, 8192)


def error(text, op="pwrite", request=REQUEST):
    return error_of(RuntimeError(text), op, "/data/file", request)


def test_cufile_codes_are_those_of_the_header():
    header = next(
        path
        for directory in stand_ins.header_directories()
        if (path := directory / "cufile.h").exists()
    ).read_text()
    entries = re.findall(
        r"CUFILE_OP\(CUFILEOP_BASE_ERR \+ (\d+),\s*\w+, (.*?)\)\s*\\?$", header, re.M
    )
    known = {text: 5000 + int(number) for number, text in entries}
    assert len(known) > 40
    assert {text: known[text] for text in CUFILE_CODES} == CUFILE_CODES
    left_out = set(known) - set(CUFILE_CODES)
    assert all(re.search("batch|stream operation|Max Error", text) for text in left_out)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (
            "KvikIO failure at: /cpp/include/kvikio/detail/posix_io.hpp:90: POSIX error on pwrite: "
            "File too large",
            errno.EFBIG,
        ),
        (
            "KvikIO failure at: /cpp/src/file_handle.cpp:279: Unable to write file: No space left "
            "on device",
            errno.ENOSPC,
        ),
        (
            "KvikIO failure at: /cpp/include/kvikio/detail/posix_io.hpp:90: POSIX error on pwrite: "
            "Operation not permitted",
            errno.EPERM,
        ),
    ],
)
def test_error_of_text_with_an_error_number_is_a_storage_error(text, number):
    found = error(text)
    assert isinstance(found, StorageError)
    assert (found.errno, found.op, found.path) == (number, "pwrite", "/data/file")
    assert (found.offset, found.nbytes) == (8192, 4096)


def test_error_of_an_open_has_no_place():
    found = error(
        "Unable to open file. Linux system/library function call error at: /cpp/file_utils.cpp:160:"
        " No such file or directory",
        "open",
        None,
    )
    assert isinstance(found, StorageError)
    assert (found.errno, found.op, found.offset) == (errno.ENOENT, "open", None)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("cuFile error at: /cpp/x.cpp:80: file descriptor is not registered", 5027),
        ("KvikIO failure at: /cpp/x.cpp:280: cuFile error:internal error", 5030),
        ("KvikIO failure at: /cpp/x.cpp:279: Unable to write file: Unknown error 5030", 5030),
        ("cuFile error at: /cpp/x.cpp:230: something new", None),
        ("something new", None),
    ],
)
def test_error_of_text_with_a_cufile_code_is_a_cufile_error(text, code):
    found = error(text)
    assert isinstance(found, CuFileError)
    assert (found.code, found.op, found.path) == (code, "cuFileWrite", "/data/file")
    assert text.rpartition(": ")[2].removeprefix("cuFile error:") in str(found)


def test_error_of_a_failed_cufile_read_is_not_taken_for_a_permission():
    # strerror(1), whatever went wrong: KvikIO takes the result -1 for the negative error.
    found = error("cuFile error at: /cpp/x.cpp:230: Operation not permitted", "pread")
    assert isinstance(found, CuFileError)
    assert (found.code, found.op) == (None, "cuFileRead")
    assert "does not tell why" in str(found)


def test_error_of_the_end_of_the_file_is_a_short_transfer():
    found = error("KvikIO failure at: /cpp/posix_io.hpp:173: POSIX error on pread: EOF", "pread")
    assert isinstance(found, ShortTransferError)
    assert (found.expected_bytes, found.actual_bytes, found.offset) == (4096, 0, 8192)


def test_error_of_cuda_without_a_driver_has_no_code():
    found = error(
        "CUDA error at: /cpp/posix_io.hpp:257: CUDA_ERROR_NEVER_HEARD_OF(an illegal memory access)"
    )
    assert isinstance(found, CudaError)
    assert (found.op, found.code) == (None, None)
    assert "CUDA_ERROR_NEVER_HEARD_OF(an illegal memory access)" in str(found)


def test_short_transfer_of_a_write_says_how_far_it_came():
    found = short_transfer("pwrite", "/data/file", REQUEST, 512)
    assert (found.expected_bytes, found.actual_bytes) == (4096, 512)
    assert "512 of them" in str(found)
