#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Headers of zip records that differ in number and size only: a shard has 100,000 of them. Same
/// bytes as gdsckpt/format/zipfmt.py, which says where the format comes from.
namespace gdsckpt {

/// Records that are called `prefix` and a number, in columns of one length.
struct NumberedRecords {
  std::string_view prefix;
  std::vector<std::uint64_t> numbers;
  std::vector<std::uint64_t> nbytes;  ///< of the payloads
};

/// The local headers, one after the other, with a CRC32 of 0. Throws ConfigError (field "prefix"
/// or "nbytes") where a name is too long or a column is not as long as the others.
std::string zip_local_headers(const NumberedRecords& records);

/// The entries of the central directory; `crcs` and `header_offsets` are columns too. Throws as
/// above, with the name of the column as field.
std::string zip_central_entries(const NumberedRecords& records,
                                const std::vector<std::uint32_t>& crcs,
                                const std::vector<std::uint64_t>& header_offsets);

}  // namespace gdsckpt
