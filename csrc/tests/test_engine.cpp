#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/crc32.hpp"
#include "core/error.hpp"
#include "engine/pinned_engine.hpp"
#include "tests/check.hpp"
#include "tests/fake_disk.hpp"

namespace gdsckpt {
namespace {

using tests::Call;
using tests::FakeDisk;
using tests::Injected;

constexpr std::uint64_t kChunk = 65536;
constexpr auto kLong = std::chrono::seconds(60);

/// A header with an empty CRC field and a payload of several chunks, as a zip file has them.
struct Source {
  std::vector<std::uint8_t> header = std::vector<std::uint8_t>(64, 0x11);
  std::vector<std::uint8_t> payload = std::vector<std::uint8_t>(3 * kChunk + 1000);

  Source() {
    for (std::size_t i = 0; i < payload.size(); ++i)
      payload[i] = static_cast<std::uint8_t>(i * 31 + i / 257);
    std::memset(header.data() + 14, 0, kCrcSlotBytes);
  }
  std::vector<Extent> extents() const {
    return {{reinterpret_cast<std::uint64_t>(header.data()), header.size(), 0, kNoCrcSlot},
            {reinterpret_cast<std::uint64_t>(payload.data()), payload.size(), 4096, 14}};
  }
  std::vector<std::uint8_t> file_bytes() const {
    std::vector<std::uint8_t> bytes(4096 + payload.size());
    std::memcpy(bytes.data(), header.data(), header.size());
    const std::uint32_t crc = crc32(0, payload.data(), payload.size());
    std::memcpy(bytes.data() + 14, &crc, sizeof crc);
    std::memcpy(bytes.data() + 4096, payload.data(), payload.size());
    return bytes;
  }
};

PinnedEngineOptions options(std::size_t io_threads) { return {io_threads, kChunk, 2}; }

void check_file(const FakeDisk& disk, Transfer& transfer, const Source& source) {
  const std::vector<std::uint8_t> expected = source.file_bytes();
  CHECK(disk.bytes == expected);
  CHECK_EQUAL(transfer.done_bytes(), expected.size());
  CHECK_EQUAL(transfer.buffered_bytes() + transfer.direct_bytes(), expected.size());
  const std::vector<std::uint32_t>& chunk_crcs = transfer.chunk_crcs();
  CHECK_EQUAL(chunk_crcs.size(), 4u);
  for (std::size_t i = 0; i < chunk_crcs.size(); ++i) {
    const std::size_t nbytes = std::min<std::size_t>(kChunk, expected.size() - i * kChunk);
    CHECK_EQUAL(chunk_crcs[i], crc32(0, expected.data() + i * kChunk, nbytes));
  }
}

TEST(engine_write_survives_every_harmless_fault_at_each_call) {
  const Source source;
  for (const bool is_direct : {true, false})
    for (const Injected fault : {Injected{EINTR}, Injected{0, 1}, Injected{0, 4096}})
      for (std::size_t index = 0; index < 8; ++index) {
        FakeDisk disk;
        disk.intercept = [&](const Call& call) { return call.index == index ? fault : Injected{}; };
        PinnedEngine engine(options(2), FakeDisk::syscalls());
        const auto transfer = engine.write(disk.open(is_direct), source.extents(), kChunk);
        transfer->result();
        check_file(disk, *transfer, source);
      }
}

TEST(engine_write_raises_the_fault_of_any_call) {
  const Source source;
  FakeDisk counting;
  PinnedEngine(options(1), FakeDisk::syscalls())
      .write(counting.open(true), source.extents(), kChunk)
      ->result();
  CHECK_EQUAL(counting.num_calls, 6u);  // four windows, an unaligned tail, the late slot
  for (std::size_t index = 0; index < counting.num_calls; ++index) {
    FakeDisk disk;
    disk.intercept = [&](const Call& call) { return Injected{call.index == index ? EIO : 0}; };
    PinnedEngine engine(options(2), FakeDisk::syscalls());
    const auto transfer = engine.write(disk.open(true), source.extents(), kChunk);
    CHECK_EQUAL(CHECK_THROWS(StorageError, transfer->result()).code(), EIO);
    CHECK_EQUAL(CHECK_THROWS(StorageError, transfer->extent_crcs()).code(), EIO);
  }
}

TEST(engine_write_refused_in_mid_flight_is_whole) {
  const Source source;
  for (std::size_t index = 0; index < 6; ++index) {
    FakeDisk disk;
    disk.intercept = [&](const Call& call) {
      return Injected{call.is_direct && call.index >= index ? EINVAL : 0};
    };
    PinnedEngine engine(options(2), FakeDisk::syscalls());
    const auto transfer = engine.write(disk.open(true), source.extents(), kChunk);
    transfer->result();
    check_file(disk, *transfer, source);
  }
}

TEST(engine_read_gives_every_byte_once_and_scan_agrees) {
  const Source source;
  for (const bool is_direct : {true, false})
    for (const std::size_t limit : {std::size_t{1000}, std::size_t{4096}, ~std::size_t{0}}) {
      FakeDisk disk;
      disk.bytes = source.file_bytes();
      disk.intercept = [limit](const Call&) { return Injected{0, limit}; };
      PinnedEngine engine(options(2), FakeDisk::syscalls());
      const auto file = disk.open(is_direct);
      std::vector<std::uint8_t> header(66, 0xEE);
      std::vector<std::uint8_t> payload(source.payload.size() + 2, 0xEE);
      const auto transfer = engine.read(
          file,
          {{reinterpret_cast<std::uint64_t>(header.data() + 1), 64, 0, kNoCrcSlot},
           {reinterpret_cast<std::uint64_t>(payload.data() + 1), source.payload.size(), 4096, 0}},
          100);
      transfer->result();
      CHECK(std::equal(source.payload.begin(), source.payload.end(), payload.begin() + 1));
      CHECK(std::equal(header.begin() + 1, header.end() - 1, disk.bytes.begin()));
      for (const auto* bytes : {&header, &payload})
        CHECK(bytes->front() == 0xEE && bytes->back() == 0xEE);
      CHECK_EQUAL(transfer->extent_crcs()[1],
                  crc32(0, source.payload.data(), source.payload.size()));
      CHECK_EQUAL(transfer->done_bytes(), transfer->total_bytes());
      CHECK_EQUAL(CHECK_THROWS(ConfigError, transfer->chunk_crcs()).field(), "chunk_crcs");
      const auto scan = engine.scan(file, FileRange{3, disk.bytes.size()}, kChunk);
      CHECK_EQUAL(scan->chunk_crcs()[0], crc32(0, disk.bytes.data() + 3, kChunk - 3));
    }
}

TEST(engine_read_behind_the_end_raises_short_transfer) {
  const Source source;
  for (const bool is_direct : {true, false}) {
    FakeDisk disk;
    disk.bytes = source.file_bytes();
    disk.bytes.resize(disk.bytes.size() - 5);
    PinnedEngine engine(options(2), FakeDisk::syscalls());
    std::vector<std::uint8_t> payload(source.payload.size());
    const auto transfer = engine.read(
        disk.open(is_direct),
        {{reinterpret_cast<std::uint64_t>(payload.data()), payload.size(), 4096, 0}}, 0);
    const auto error = CHECK_THROWS(ShortTransferError, transfer->result());
    CHECK_EQUAL(error.expected_bytes() - error.actual_bytes(), 5u);
  }
}

/// Lets the disk hang in its first call until it is told to go on.
struct Gate {
  std::atomic<bool> is_reached{false};
  std::atomic<bool> is_open{false};
  std::function<Injected(const Call&)> intercept() {
    return [this](const Call&) {
      is_reached = true;
      while (!is_open) std::this_thread::yield();
      return Injected{};
    };
  }
  void wait_until_reached() const {
    while (!is_reached) std::this_thread::yield();
  }
};

TEST(write_prefix_ends_where_the_first_unfinished_window_begins) {
  const Source source;
  FakeDisk disk;
  Gate gate;
  disk.intercept = [&](const Call& call) {
    if (call.index == 0) {
      gate.is_reached = true;
      while (!gate.is_open) std::this_thread::yield();
    }
    return Injected{};
  };
  PinnedEngine engine({1, kChunk, 2}, FakeDisk::syscalls());
  const auto transfer = engine.write(disk.open(true), source.extents(), kChunk);
  gate.wait_until_reached();
  CHECK_EQUAL(transfer->prefix_bytes(), 0u);
  gate.is_open = true;
  transfer->result();
  CHECK_EQUAL(transfer->prefix_bytes(), transfer->total_bytes());
}

TEST(write_prefix_does_not_pass_a_window_that_failed) {
  const Source source;
  for (std::size_t index = 0; index < 4; ++index) {
    FakeDisk disk;
    disk.intercept = [&](const Call& call) { return Injected{call.index == index ? EIO : 0}; };
    PinnedEngine engine(options(1), FakeDisk::syscalls());
    const auto transfer = engine.write(disk.open(false), source.extents(), kChunk);
    CHECK_THROWS(StorageError, transfer->result());
    CHECK_EQUAL(transfer->prefix_bytes(), index * kChunk);
  }
}

TEST(prefix_is_of_writes_only) {
  FakeDisk disk(4 * kChunk);
  PinnedEngine engine(options(2), FakeDisk::syscalls());
  const auto scan = engine.scan(disk.open(true), FileRange{0, disk.bytes.size()}, kChunk);
  scan->result();
  CHECK_EQUAL(scan->prefix_bytes(), 0u);
  const auto nothing = engine.write(disk.open(true), {}, kChunk);
  nothing->result();
  CHECK_EQUAL(nothing->prefix_bytes(), 0u);
}

TEST(transfer_cancelled_drops_the_rest_and_raises_ecanceled) {
  const Source source;
  FakeDisk disk;
  Gate gate;
  disk.intercept = gate.intercept();
  PinnedEngine engine(options(1), FakeDisk::syscalls());
  const auto transfer = engine.write(disk.open(true), source.extents(), kChunk);
  const auto queued = engine.write(disk.open(true), source.extents(), kChunk);
  gate.wait_until_reached();
  queued->cancel();
  CHECK(queued->has_ended());  // nothing of it had been started
  transfer->cancel();
  CHECK(!transfer->wait_for(std::chrono::milliseconds(1)));
  gate.is_open = true;
  CHECK(transfer->wait_for(kLong));
  const StorageError error = CHECK_THROWS(StorageError, transfer->result());
  CHECK_EQUAL(error.code(), ECANCELED);
  CHECK_EQUAL(error.context().op, "write");
  CHECK(transfer->done_bytes() < transfer->total_bytes());
  transfer->cancel();
}

TEST(transfer_cancelled_after_its_end_has_succeeded) {
  const Source source;
  FakeDisk disk;
  PinnedEngine engine(options(2), FakeDisk::syscalls());
  const auto transfer = engine.write(disk.open(true), source.extents(), kChunk);
  transfer->result();
  transfer->cancel();
  transfer->result();
}

TEST(engine_closed_while_a_transfer_runs_ends_it) {
  const Source source;
  FakeDisk disk;
  Gate gate;
  disk.intercept = gate.intercept();
  PinnedEngine engine(options(1), FakeDisk::syscalls());
  const auto transfer = engine.write(disk.open(true), source.extents(), kChunk);
  gate.wait_until_reached();
  std::thread closer([&] { engine.close(); });
  gate.is_open = true;
  closer.join();
  CHECK(transfer->has_ended());
  engine.close();
  const auto error =
      CHECK_THROWS(EngineUnavailableError, engine.write(disk.open(true), source.extents(), kChunk));
  CHECK_EQUAL(error.engine(), "pinned");
}

TEST(transfer_of_nothing_has_ended) {
  FakeDisk disk;
  PinnedEngine engine(options(1), FakeDisk::syscalls());
  for (const auto& transfer :
       {engine.write(disk.open(true), {}, kChunk), engine.read(disk.open(true), {}, 0),
        engine.scan(disk.open(true), FileRange{5, 5}, kChunk)}) {
    CHECK(transfer->has_ended());
    transfer->result();
  }
  CHECK_EQUAL(disk.num_calls, 0u);
}

TEST(engine_rejects_chunks_that_do_not_fit) {
  FakeDisk disk;
  PinnedEngine engine(options(1), FakeDisk::syscalls());
  for (const std::uint64_t chunk_bytes : {std::uint64_t{0}, std::uint64_t{100}, 2 * kChunk})
    CHECK_EQUAL(CHECK_THROWS(ConfigError, engine.write(disk.open(true), {}, chunk_bytes)).field(),
                "chunk_bytes");
  CHECK_THROWS(ConfigError, engine.scan(disk.open(true), FileRange{9, 5}, kChunk));
}

TEST(engine_write_over_a_slot_that_is_in_use_raises) {
  Source source;
  source.header[15] = 1;
  FakeDisk disk;
  PinnedEngine engine(options(1), FakeDisk::syscalls());
  const auto transfer = engine.write(disk.open(true), source.extents(), kChunk);
  CHECK_EQUAL(CHECK_THROWS(ConfigError, transfer->result()).field(), "extents");
}

/// What a forked child finds; its exit status.
int check_in_child(PinnedEngine& engine, std::unique_ptr<TransferHandle>& handle, FakeDisk& disk) {
  try {
    CHECK_THROWS(EngineUnavailableError, engine.scan(disk.open(true), FileRange{0, 0}, kChunk));
    CHECK_THROWS(EngineUnavailableError, engine.close());
    CHECK_THROWS(EngineUnavailableError, handle->get());
    handle.reset();
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}

TEST(forked_child_finds_a_dead_engine_and_never_waits) {
  const Source source;
  FakeDisk disk;
  Gate gate;
  disk.intercept = gate.intercept();
  auto engine = std::make_unique<PinnedEngine>(options(1), FakeDisk::syscalls());
  auto handle =
      std::make_unique<TransferHandle>(engine->write(disk.open(true), source.extents(), kChunk));
  gate.wait_until_reached();  // the worker is in the middle of a call when the process forks
  const pid_t child = fork();
  if (child == 0) {
    const int status = check_in_child(*engine, handle, disk);
    engine.reset();
    _exit(status);
  }
  int status = -1;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
  gate.is_open = true;
  handle->get().result();
  check_file(disk, handle->get(), source);
}

}  // namespace
}  // namespace gdsckpt
