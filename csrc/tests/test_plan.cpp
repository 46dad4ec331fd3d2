#include <vector>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "engine/piece_crcs.hpp"
#include "engine/read_plan.hpp"
#include "engine/write_plan.hpp"
#include "tests/check.hpp"

namespace gdsckpt {
namespace {

constexpr std::uint64_t kAddress = 0x1000;  // never touched: plans are pure

void check_range(FileRange range, std::uint64_t begin, std::uint64_t end) {
  CHECK_EQUAL(range.begin, begin);
  CHECK_EQUAL(range.end, end);
}

TEST(window_grid_cuts_at_multiples_of_the_file_offset) {
  const WindowGrid grid(FileRange{150, 420}, 100);
  CHECK_EQUAL(grid.num_windows(), 4u);
  check_range(grid.window(0), 150, 200);
  check_range(grid.window(1), 200, 300);
  check_range(grid.window(3), 400, 420);
  CHECK_EQUAL(grid.index_of(150), 0u);
  CHECK_EQUAL(grid.index_of(399), 2u);
  CHECK_EQUAL(WindowGrid(FileRange{7, 7}, 100).num_windows(), 0u);
  CHECK_EQUAL(WindowGrid(FileRange{100, 200}, 100).num_windows(), 1u);
}

TEST(write_plan_tells_early_slots_from_late_ones) {
  const WritePlan plan({{kAddress, 300, 0, kNoCrcSlot},  // headers
                        {kAddress, 50, 320, 260},        // same window as its slot
                        {kAddress, 50, 370, 10},         // slot in an earlier window
                        {kAddress, 100, 430, 298},       // straddles 300
                        {kAddress, 20, 590, 420},        // extent ends in a later window
                        {0, 0, 620, 20}},                // empty
                       100);
  CHECK_EQUAL(plan.slots().size(), 5u);
  CHECK_EQUAL(plan.slots()[0].extent, 2u);  // ascending by offset
  CHECK(!plan.is_early(CrcSlot{260, 1}));   // 260 is in [200, 300), 320 in [300, 400)
  CHECK(!plan.is_early(CrcSlot{10, 2}));
  CHECK(!plan.is_early(CrcSlot{298, 3}));
  CHECK(!plan.is_early(CrcSlot{420, 4}));
  CHECK(plan.is_early(CrcSlot{20, 5}));
  const WritePlan one({{kAddress, 30, 0, kNoCrcSlot}, {kAddress, 70, 30, 10}}, 100);
  CHECK(one.is_early(one.slots()[0]));
  CHECK_EQUAL(one.find_slot(0), 0u);
  CHECK_EQUAL(one.find_slot(13), 0u);
  CHECK_EQUAL(one.find_slot(14), 1u);
}

TEST(write_plan_rejects_slots_that_can_not_be) {
  const auto field = [](std::vector<Extent> extents) {
    return CHECK_THROWS(ConfigError, WritePlan(std::move(extents), 100)).field();
  };
  const Extent head{kAddress, 50, 100, kNoCrcSlot};
  CHECK_EQUAL(field({head, {kAddress, 9, 200, 99}}), "extents");   // before the range
  CHECK_EQUAL(field({head, {kAddress, 9, 200, 197}}), "extents");  // reaches into its extent
  CHECK_EQUAL(field({head, {kAddress, 9, 200, 205}}), "extents");  // inside its extent
  CHECK_EQUAL(field({head, {kAddress, 9, 200, 110}, {kAddress, 9, 300, 113}}), "extents");
  CHECK_EQUAL(field({head, {kAddress, 9, 200, 110}, {kAddress, 9, 300, 204}}), "extents");
  CHECK_EQUAL(field({{kAddress, 9, 2, 0}}), "extents");
}

TEST(read_plan_skips_holes_and_cuts_at_windows) {
  const std::vector<Extent> extents{{kAddress, 250, 50, kNoCrcSlot},
                                    {0, 0, 5000, kNoCrcSlot},
                                    {kAddress, 10, 1000000, kNoCrcSlot}};
  const std::vector<ReadWindow> windows = plan_read_windows(extents, 100);
  CHECK_EQUAL(windows.size(), 4u);
  check_range(windows[0].range, 0, 100);
  check_range(windows[2].range, 200, 300);
  check_range(windows[3].range, 1000000, 1000100);
  CHECK_EQUAL(windows[3].first_extent, 2u);
}

TEST(next_request_joins_over_small_holes_only) {
  const std::vector<Extent> extents{{kAddress, 10, 0, kNoCrcSlot},
                                    {kAddress, 10, 15, kNoCrcSlot},
                                    {kAddress, 10, 31, kNoCrcSlot},
                                    {kAddress, 100, 90, kNoCrcSlot}};
  const FileRange window{0, 100};
  ReadRequest request = next_request(extents, window, 0, 5);
  check_range(request.range, 0, 25);
  CHECK_EQUAL(request.num_pieces, 2u);
  request = next_request(extents, window, request.past_extent, 5);
  check_range(request.range, 31, 41);
  request = next_request(extents, window, request.past_extent, 5);
  check_range(request.range, 90, 100);
  CHECK_EQUAL(next_request(extents, window, request.past_extent, 5).num_pieces, 0u);
  check_range(next_request(extents, window, 0, 1000).range, 0, 100);
}

}  // namespace
}  // namespace gdsckpt
