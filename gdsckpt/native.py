"""The native core: checksums by kernel, and transfers between memory and files.

The one door to the extension ``gdsckpt._C``; signatures and contracts are in ``_C.pyi``.
"""

try:
    from gdsckpt._C import (
        HOST,
        NO_CRC_SLOT,
        DeviceMemory,
        Engine,
        File,
        HostMemory,
        NvtxRange,
        StreamFence,
        Transfer,
        advise_hugepages,
        copy_crc32_with,
        crc32,
        crc32_at,
        crc32_combine,
        crc32_kernels,
        crc32_with,
        crc32_zeros,
        cuda_copy_to_device,
        cuda_copy_to_host,
        cuda_device_of,
        cuda_devices,
        cuda_load,
        cuda_version,
        cuda_wait,
        cufile_close,
        cufile_facts,
        cufile_last_error,
        cufile_load,
        cufile_open,
        cufile_stats,
        direct_alignment,
        fallocate,
        gather,
        nvtx_compiled,
        populate,
        sample_blocks,
        sample_crcs,
        splice_pickle,
        zip_central_entries,
        zip_local_headers,
    )
except ImportError as error:
    if error.name not in (None, "gdsckpt._C"):
        raise
    message = (
        "The native extension gdsckpt._C cannot be loaded: it has not been built for this Python, "
        f"or a library that it needs is missing ({error}). Build it with "
        "'pip install .' (needs g++), or 'python setup.py build_ext --inplace' in a source tree."
    )
    raise ImportError(message, name="gdsckpt._C", path=error.path) from error

__all__ = [
    "HOST",
    "NO_CRC_SLOT",
    "DeviceMemory",
    "Engine",
    "File",
    "HostMemory",
    "NvtxRange",
    "StreamFence",
    "Transfer",
    "advise_hugepages",
    "copy_crc32_with",
    "crc32",
    "crc32_at",
    "crc32_combine",
    "crc32_kernels",
    "crc32_with",
    "crc32_zeros",
    "cuda_copy_to_device",
    "cuda_copy_to_host",
    "cuda_device_of",
    "cuda_devices",
    "cuda_load",
    "cuda_version",
    "cuda_wait",
    "cufile_close",
    "cufile_facts",
    "cufile_last_error",
    "cufile_load",
    "cufile_open",
    "cufile_stats",
    "direct_alignment",
    "fallocate",
    "gather",
    "nvtx_compiled",
    "populate",
    "sample_blocks",
    "sample_crcs",
    "splice_pickle",
    "zip_central_entries",
    "zip_local_headers",
]
