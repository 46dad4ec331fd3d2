#include "core/zip_headers.hpp"

#include <cstddef>
#include <limits>

#include "core/error.hpp"

namespace gdsckpt {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structures are written as they are");

constexpr std::uint64_t kMax16 = std::numeric_limits<std::uint16_t>::max();
constexpr std::uint64_t kMax32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kDigitsMax = 20;  // of a 64-bit number
constexpr std::uint16_t kVersionPlain = 20;
constexpr std::uint16_t kVersionZip64 = 45;
constexpr std::uint16_t kZip64Id = 1;

/// What both headers hold.
struct [[gnu::packed]] RecordFields {
  std::uint16_t version = kVersionPlain;
  std::uint16_t flags = 0x0800;  // the name is UTF-8
  std::uint16_t method = 0;      // stored
  std::uint16_t time = 0;
  std::uint16_t date = 0x21;  // the first day of 1980
  std::uint32_t crc = 0;
  std::uint32_t packed_nbytes = 0;
  std::uint32_t nbytes = 0;
  std::uint16_t name_nbytes = 0;
  std::uint16_t extra_nbytes = 0;
};

struct [[gnu::packed]] LocalHeader {
  std::uint32_t signature = 0x04034b50;
  RecordFields fields;
};
static_assert(sizeof(LocalHeader) == 30);

struct [[gnu::packed]] CentralEntry {
  std::uint32_t signature = 0x02014b50;
  std::uint16_t made_by_version = kVersionPlain;
  RecordFields fields;
  std::uint8_t comment_disk_attributes[10] = {};
  std::uint32_t header_offset = 0;
};
static_assert(sizeof(CentralEntry) == 46);

/// The extra field for what does not fit into 32 bits.
class Zip64Field {
 public:
  void add(std::uint64_t number) noexcept { numbers_[num_numbers_++] = number; }

  std::size_t nbytes() const noexcept { return num_numbers_ == 0 ? 0 : 4 + 8 * num_numbers_; }

  void append_to(std::string& out) const {
    if (num_numbers_ == 0) return;
    const std::uint16_t head[2] = {kZip64Id, static_cast<std::uint16_t>(8 * num_numbers_)};
    out.append(reinterpret_cast<const char*>(head), sizeof head);
    out.append(reinterpret_cast<const char*>(numbers_), 8 * num_numbers_);
  }

 private:
  std::uint64_t numbers_[3] = {};  // payload size, twice, and header offset
  std::size_t num_numbers_ = 0;
};

std::uint32_t field_of(std::uint64_t value) noexcept {
  return static_cast<std::uint32_t>(value < kMax32 ? value : kMax32);
}

/// What a record of this payload size needs in it: the size packed and unpacked.
Zip64Field zip64_of(std::uint64_t nbytes) noexcept {
  Zip64Field zip64;
  if (nbytes >= kMax32) {
    zip64.add(nbytes);
    zip64.add(nbytes);
  }
  return zip64;
}

RecordFields fields_of(std::size_t name_nbytes, std::uint64_t nbytes, std::uint32_t crc,
                       const Zip64Field& zip64) noexcept {
  RecordFields fields;
  if (zip64.nbytes() > 0) fields.version = kVersionZip64;
  fields.crc = crc;
  fields.packed_nbytes = field_of(nbytes);
  fields.nbytes = field_of(nbytes);
  fields.name_nbytes = static_cast<std::uint16_t>(name_nbytes);
  fields.extra_nbytes = static_cast<std::uint16_t>(zip64.nbytes());
  return fields;
}

/// A header, the name of the record and the extra field.
template <typename Header>
void append(std::string& out, const Header& header, std::string_view prefix,
            std::string_view digits, const Zip64Field& zip64) {
  out.append(reinterpret_cast<const char*>(&header), sizeof header);
  out.append(prefix).append(digits);
  zip64.append_to(out);
}

void require_column(std::size_t length, const NumberedRecords& records, const char* field) {
  if (length != records.numbers.size())
    throw ConfigError(std::string(field) + " has " + std::to_string(length) + " items for " +
                          std::to_string(records.numbers.size()) + " records.",
                      field);
}

void check(const NumberedRecords& records) {
  if (records.prefix.size() + kDigitsMax > kMax16)
    throw ConfigError("prefix has " + std::to_string(records.prefix.size()) +
                          " bytes; names of zip records end at 65535.",
                      "prefix");
  require_column(records.nbytes.size(), records, "nbytes");
}

}  // namespace

std::string zip_local_headers(const NumberedRecords& records) {
  check(records);
  std::string out;
  out.reserve(records.numbers.size() * (sizeof(LocalHeader) + records.prefix.size() + kDigitsMax));
  for (std::size_t i = 0; i < records.numbers.size(); ++i) {
    const std::string digits = std::to_string(records.numbers[i]);
    const std::uint64_t nbytes = records.nbytes[i];
    const Zip64Field zip64 = zip64_of(nbytes);
    LocalHeader header;
    header.fields = fields_of(records.prefix.size() + digits.size(), nbytes, 0, zip64);
    append(out, header, records.prefix, digits, zip64);
  }
  return out;
}

std::string zip_central_entries(const NumberedRecords& records,
                                const std::vector<std::uint32_t>& crcs,
                                const std::vector<std::uint64_t>& header_offsets) {
  check(records);
  require_column(crcs.size(), records, "crcs");
  require_column(header_offsets.size(), records, "header_offsets");
  std::string out;
  out.reserve(records.numbers.size() * (sizeof(CentralEntry) + records.prefix.size() + kDigitsMax));
  for (std::size_t i = 0; i < records.numbers.size(); ++i) {
    const std::string digits = std::to_string(records.numbers[i]);
    const std::uint64_t nbytes = records.nbytes[i];
    Zip64Field zip64 = zip64_of(nbytes);
    if (header_offsets[i] >= kMax32) zip64.add(header_offsets[i]);
    CentralEntry entry;
    entry.fields = fields_of(records.prefix.size() + digits.size(), nbytes, crcs[i], zip64);
    entry.made_by_version = entry.fields.version;
    entry.header_offset = field_of(header_offsets[i]);
    append(out, entry, records.prefix, digits, zip64);
  }
  return out;
}

}  // namespace gdsckpt
