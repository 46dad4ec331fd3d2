#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "engine/cufile_policy.hpp"
#include "shim/cufile.hpp"
#include "shim/cufile_result.hpp"
#include "tests/check.hpp"

namespace gdsckpt {
namespace {

constexpr std::uint64_t kBlock = 4096;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

CUfileError_t status_of(int code, int cuda_code = 0) {
  CUfileError_t status{};
  std::memcpy(&status.err, &code, sizeof(code));
  status.cu_err = static_cast<CUresult>(cuda_code);
  return status;
}

TEST(cufile_result_of_zero_or_more_is_bytes_whatever_errno_says) {
  CHECK_EQUAL(decode_cufile_bytes(4096, ENOENT).nbytes, 4096u);
  CHECK(decode_cufile_bytes(4096, ENOENT).is_success());
  CHECK(decode_cufile_bytes(0, 5008).is_success());
  CHECK_EQUAL(decode_cufile_bytes(0, 5008).nbytes, 0u);
}

TEST(cufile_result_of_minus_one_is_what_errno_says) {
  CHECK_EQUAL(decode_cufile_bytes(-1, ENOSPC).code, ENOSPC);
  CHECK_EQUAL(decode_cufile_bytes(-1, 5017).code, 5017);
  CHECK_EQUAL(decode_cufile_bytes(-1, 0).code, 5030);
}

TEST(cufile_result_below_minus_one_is_the_code_itself) {
  CHECK_EQUAL(decode_cufile_bytes(-5008, ENOENT).code, 5008);
  CHECK_EQUAL(decode_cufile_bytes(-22, 5008).code, EINVAL);
}

TEST(cufile_errno_is_a_storage_error) {
  const auto error = CHECK_THROWS(
      StorageError, raise_cufile_result({0, ENOSPC}, {"cuFileWrite", "/nvme/x", 4096, 8192}));
  CHECK_EQUAL(error.code(), ENOSPC);
  CHECK_EQUAL(error.message(),
              "cuFileWrite of 8192 bytes at offset 4096 in /nvme/x failed: No space left on device "
              "(errno 28). Free space on the file system or save elsewhere.");
}

TEST(cufile_code_is_a_cufile_error_that_says_what_to_do) {
  const auto error = CHECK_THROWS(
      CuFileError, raise_cufile_result({0, 5018}, {"cuFileWrite", "/nvme/x", 4096, 8192}));
  CHECK_EQUAL(error.code(), 5018);
  CHECK_EQUAL(error.context().offset, 4096u);
  CHECK_EQUAL(error.context().nbytes, 8192u);
  CHECK_EQUAL(error.message(),
              "cuFileWrite of 8192 bytes at offset 4096 in /nvme/x failed: unsupported file type "
              "(CU_FILE_INVALID_FILE_TYPE, 5018). Save to a regular file on ext4 or XFS.");
}

TEST(cufile_code_without_a_name_is_told_by_number) {
  CHECK_EQUAL(describe_cufile_code(6001), "an error that cufile.h does not name (6001)");
  CHECK_EQUAL(mend_cufile_code(6001), "");
}

TEST(cufile_codes_of_the_header_have_names) {
  for (int code = 5001; code <= 5049; ++code) {
    if (code == 5021 || code == 5032) continue;  // not in use
    CHECK(contains(describe_cufile_code(code), "(CU_FILE_"));
  }
}

TEST(cufile_status_names_the_cuda_error_and_takes_either_sign) {
  CHECK(is_success(status_of(0)));
  CHECK_EQUAL(code_of(status_of(-5016)), 5016);
  CHECK(contains(describe(status_of(5011, 801)), "5011) with CUDA error 801"));
}

TEST(cufile_busy_and_refusals_are_told_apart_from_errors_of_the_file) {
  for (const int code : {5039, 5043, EAGAIN}) CHECK((CuFileResult{0, code}.is_busy()));
  for (const int code : {5038, 5044, EINTR, EIO}) CHECK(!(CuFileResult{0, code}.is_busy()));
  for (const int code : {5001, 5049, 6001, EINVAL, EOPNOTSUPP, EFAULT, EREMOTEIO, EPERM, EIO})
    CHECK((CuFileResult{0, code}.is_refusal()));
  for (const int code : {0, ENOSPC, EBADF, EINTR}) CHECK(!(CuFileResult{0, code}.is_refusal()));
}

TEST(cufile_stats_are_found_in_both_layouts) {
  for (const int version : {1150, 1180, 1190, 1200}) {
    std::vector<std::uint8_t> buffer(kStatsBufferBytes);
    const std::size_t head_bytes = version >= 1190 ? 1136 : 1024;
    const std::uint32_t num_gpus = 2;
    std::memcpy(buffer.data() + head_bytes, &num_gpus, sizeof(num_gpus));
    CUfilePerGpuStats_t gpu{};
    gpu.n_p2p_writes = 1;
    gpu.n_nvfs_writes = 10;
    gpu.n_posix_writes = 100;
    gpu.n_writes_err = 1000;
    gpu.n_nvfs_reads = 7;
    for (std::size_t i = 0; i < 3; ++i)  // the third is not counted
      std::memcpy(buffer.data() + head_bytes + 8 + i * sizeof(gpu), &gpu, sizeof(gpu));
    const CuFileStats stats = parse_cufile_stats(buffer.data(), version);
    CHECK_EQUAL(stats.writes.p2p, 2u);
    CHECK_EQUAL(stats.writes.nvfs, 20u);
    CHECK_EQUAL(stats.writes.posix, 200u);
    CHECK_EQUAL(stats.writes.errors, 2000u);
    CHECK_EQUAL(stats.reads.nvfs, 14u);
  }
}

TEST(cufile_alignment_is_the_largest_of_block_page_and_file) {
  CHECK_EQUAL(cufile_alignment(4096, 512), 4096u);
  CHECK_EQUAL(cufile_alignment(65536, 512), 65536u);
  CHECK_EQUAL(cufile_alignment(4096, 65536), 65536u);
}

TEST(cufile_interior_is_the_aligned_part_of_a_large_piece) {
  constexpr std::uint64_t kMiB = 1024 * 1024;
  const FileRange whole = cufile_interior({kMiB, 3 * kMiB}, 7 * kMiB, kBlock);
  CHECK_EQUAL(whole.begin, kMiB);
  CHECK_EQUAL(whole.end, 3 * kMiB);
  const FileRange inner = cufile_interior({kMiB + 100, 3 * kMiB + 5}, 7 * kMiB + 100, kBlock);
  CHECK_EQUAL(inner.begin, kMiB + kBlock);
  CHECK_EQUAL(inner.end, 3 * kMiB);
}

TEST(cufile_interior_of_pages_of_64_kib_asks_for_their_alignment) {
  constexpr std::uint64_t kMiB = 1024 * 1024;
  CHECK_EQUAL(cufile_interior({kMiB, 3 * kMiB}, 7 * kMiB + kBlock, 65536).nbytes(), 0u);
  const FileRange inner = cufile_interior({kMiB + kBlock, 3 * kMiB}, kBlock, 65536);
  CHECK_EQUAL(inner.begin, kMiB + 65536);
}

TEST(cufile_interior_is_empty_where_nothing_is_aligned_or_large) {
  constexpr std::uint64_t kMiB = 1024 * 1024;
  CHECK_EQUAL(cufile_interior({kMiB, 3 * kMiB}, 7 * kMiB + 64, kBlock).nbytes(), 0u);
  CHECK_EQUAL(cufile_interior({kMiB, kMiB + kCuFileLeastBytes - kBlock}, kMiB, kBlock).nbytes(),
              0u);
  CHECK_EQUAL(cufile_interior({kMiB + 1, kMiB + 2}, 1, kBlock).nbytes(), 0u);
  CHECK_EQUAL(cufile_interior({kMiB + 1, kMiB + 2}, 1, kBlock).begin, kMiB + 1);
}

}  // namespace
}  // namespace gdsckpt
