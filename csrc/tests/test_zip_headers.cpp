#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/zip_headers.hpp"
#include "tests/check.hpp"

namespace gdsckpt {
namespace {

constexpr std::uint64_t kGiB = 1024 * 1024 * 1024;

std::string hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<std::uint8_t>(byte) >> 4];
    text += kDigits[byte & 0xf];
  }
  return text;
}

/// Expected bytes by hand, from PKWARE APPNOTE.TXT 4.3.7, 4.3.12 and 4.5.3.
std::string without_spaces(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  return text;
}

TEST(zip_local_headers_are_those_of_the_format) {
  const NumberedRecords records{"a/", {7, 12}, {0x1234, 4 * kGiB}};
  CHECK_EQUAL(hex(zip_local_headers(records)),
              without_spaces(
                  "504b0304 1400 0008 0000 0000 2100 00000000 34120000 34120000 0300 0000 612f37"
                  "504b0304 2d00 0008 0000 0000 2100 00000000 ffffffff ffffffff 0400 1400 612f3132"
                  "0100 1000 0000000001000000 0000000001000000"));
}

TEST(zip_central_entries_widen_what_does_not_fit_in_32_bits) {
  const NumberedRecords records{"", {1, 2, 3}, {5, 5, 4 * kGiB - 1}};
  const std::vector<std::uint64_t> offsets = {4 * kGiB - 2, 4 * kGiB - 1, 8 * kGiB};
  CHECK_EQUAL(
      hex(zip_central_entries(records, {0xaabbccdd, 0, 1}, offsets)),
      without_spaces(
          "504b0102 1400 1400 0008 0000 0000 2100 ddccbbaa 05000000 05000000 0100 0000 0000 0000"
          "0000 00000000 feffffff 31"
          "504b0102 2d00 2d00 0008 0000 0000 2100 00000000 05000000 05000000 0100 0c00 0000 0000"
          "0000 00000000 ffffffff 32 0100 0800 ffffffff00000000"
          "504b0102 2d00 2d00 0008 0000 0000 2100 01000000 ffffffff ffffffff 0100 1c00 0000 0000"
          "0000 00000000 ffffffff 33 0100 1800 ffffffff00000000 ffffffff00000000"
          "0000000002000000"));
}

TEST(zip_headers_of_no_records_are_nothing) {
  CHECK_EQUAL(zip_local_headers({"a/", {}, {}}), "");
  CHECK_EQUAL(zip_central_entries({"a/", {}, {}}, {}, {}), "");
}

TEST(zip_headers_refuse_columns_of_other_lengths_and_long_names) {
  const std::string long_prefix(65536, 'x');
  CHECK_EQUAL(CHECK_THROWS(ConfigError, zip_local_headers({"a/", {1, 2}, {3}})).field(), "nbytes");
  CHECK_EQUAL(CHECK_THROWS(ConfigError, zip_local_headers({long_prefix, {1}, {3}})).field(),
              "prefix");
  CHECK_EQUAL(CHECK_THROWS(ConfigError, zip_central_entries({"a/", {1}, {3}}, {}, {0})).field(),
              "crcs");
  CHECK_EQUAL(CHECK_THROWS(ConfigError, zip_central_entries({"a/", {1}, {3}}, {0}, {})).field(),
              "header_offsets");
}

}  // namespace
}  // namespace gdsckpt
