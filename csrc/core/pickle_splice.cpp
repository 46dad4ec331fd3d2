#include "core/pickle_splice.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.hpp"

namespace gdsckpt {
namespace {

// Opcodes of Python's pickletools.
constexpr char kMark = '(';
constexpr char kTuple = 't';
constexpr char kReduce = 'R';
constexpr char kNone = 'N';
constexpr char kNewTrue = '\x88';
constexpr char kNewFalse = '\x89';
constexpr char kBinInt = 'J';
constexpr char kBinInt1 = 'K';
constexpr char kBinInt2 = 'M';
constexpr char kLong1 = '\x8a';
constexpr char kBinUnicode = 'X';
constexpr char kBinPersId = 'Q';
constexpr char kBinPut = 'q';
constexpr char kLongBinPut = 'r';
constexpr char kBinGet = 'h';
constexpr char kLongBinGet = 'j';
constexpr char kStop = '.';

/// What follows an opcode.
enum class Argument : std::uint8_t {
  kUnknownOpcode,
  kNothing,
  kOneByte,
  kTwoBytes,
  kFourBytes,
  kEightBytes,
  kCountedByOneByte,
  kCountedByFourBytes,
  kLine,
  kTwoLines,
};

/// The opcodes of protocol 2.
std::array<Argument, 256> opcode_table() {
  const std::pair<Argument, std::string_view> kinds[] = {
      {Argument::kNothing, "(.012NQR)]abdelostu}\x81\x85\x86\x87\x88\x89"},
      {Argument::kOneByte, "Khq\x80\x82"},
      {Argument::kTwoBytes, "M\x83"},
      {Argument::kFourBytes, "Jjr\x84"},
      {Argument::kEightBytes, "G"},
      {Argument::kCountedByOneByte, "U\x8a"},
      {Argument::kCountedByFourBytes, "TX\x8b"},
      {Argument::kLine, "FILPSVgp"},
      {Argument::kTwoLines, "ci"},
  };
  std::array<Argument, 256> table{};
  for (const auto& [argument, opcodes] : kinds)
    for (const char opcode : opcodes) table[static_cast<std::uint8_t>(opcode)] = argument;
  return table;
}

[[noreturn]] void fail(const std::string& what, std::size_t at) {
  throw ConfigError("the pickle " + what + " at byte " + std::to_string(at) + ".", "pickle");
}

/// A place of the pickle where a tensor's number stands.
struct Marker {
  std::size_t begin;
  std::size_t end;
  std::uint64_t number;
};

/// Reads opcode after opcode; never beyond the end.
class Reader {
 public:
  Reader(const std::uint8_t* data, std::size_t nbytes) : data_(data), nbytes_(nbytes) {}

  /// Where the next opcode begins.
  std::size_t position() const noexcept { return at_; }
  bool is_at_end() const noexcept { return at_ == nbytes_; }

  /// Goes over an opcode and its argument; gives the opcode.
  char next() {
    static const std::array<Argument, 256> kArgumentOf = opcode_table();
    const std::size_t begin = at_;
    const std::uint8_t opcode = data_[skip(1)];
    switch (kArgumentOf[opcode]) {
      case Argument::kNothing:
        break;
      case Argument::kOneByte:
        argument_ = number(1);
        break;
      case Argument::kTwoBytes:
        argument_ = number(2);
        break;
      case Argument::kFourBytes:
        argument_ = number(4);
        break;
      case Argument::kEightBytes:
        skip(8);
        break;
      case Argument::kCountedByOneByte:
        skip(number(1));
        break;
      case Argument::kCountedByFourBytes:
        skip(number(4));
        break;
      case Argument::kTwoLines:
        skip_line();
        skip_line();
        break;
      case Argument::kLine:
        skip_line();
        break;
      case Argument::kUnknownOpcode:
        fail("has an opcode that protocol 2 does not have", begin);
    }
    return static_cast<char>(opcode);
  }

  /// The argument of the last opcode, if it has one of fixed size that is a whole number.
  std::uint64_t argument() const noexcept { return argument_; }

 private:
  std::size_t skip(std::uint64_t nbytes) {
    const std::size_t begin = at_;
    if (nbytes > nbytes_ - at_) fail("ends within an opcode", begin);
    at_ += static_cast<std::size_t>(nbytes);
    return begin;
  }

  /// Little-endian, as all of pickle.
  std::uint64_t number(std::size_t nbytes) {
    const std::size_t begin = skip(nbytes);
    std::uint64_t value = 0;
    for (std::size_t i = nbytes; i-- > 0;) value = value << 8 | data_[begin + i];
    return value;
  }

  void skip_line() {
    const void* end = std::memchr(data_ + at_, '\n', nbytes_ - at_);
    if (end == nullptr) fail("ends within a line", at_);
    at_ = static_cast<std::size_t>(static_cast<const std::uint8_t*>(end) - data_) + 1;
  }

  const std::uint8_t* data_;
  std::size_t nbytes_;
  std::size_t at_ = 0;
  std::uint64_t argument_ = 0;
};

/// What one look at the whole pickle finds.
struct Scan {
  std::vector<Marker> markers;
  std::uint64_t memo_end = 0;  ///< first number that no BINPUT has
};

Scan scan(const std::uint8_t* pickle, std::size_t nbytes, std::size_t num_rows) {
  Scan found;
  Reader reader(pickle, nbytes);
  std::size_t before = 0;
  char opcode_before = kNone;
  while (!reader.is_at_end()) {
    const std::size_t begin = reader.position();
    const std::uint64_t number = reader.argument();
    const char opcode = reader.next();
    const bool is_numbered =
        opcode_before == kBinInt1 || opcode_before == kBinInt2 || opcode_before == kBinInt;
    if (opcode == kBinPersId && is_numbered) {
      if (number >= num_rows) fail("names a tensor that has no row", before);
      found.markers.push_back({before, reader.position(), number});
    }
    if (opcode == kBinPut || opcode == kLongBinPut)
      found.memo_end = std::max(found.memo_end, reader.argument() + 1);
    before = begin;
    opcode_before = opcode;
  }
  if (opcode_before != kStop) fail("has no end", nbytes);
  return found;
}

/// Writes opcodes.
class Writer {
 public:
  Writer(const std::vector<std::string>& pieces, std::uint64_t memo_end)
      : pieces_(pieces), memo_of_(pieces.size(), kNoPiece), memo_end_(memo_end) {}

  void raw(const std::uint8_t* data, std::size_t nbytes) {
    out_.append(reinterpret_cast<const char*>(data), nbytes);
  }

  /// What rebuilds a tensor, and leaves it on the stack.
  void tensor(const TensorRow& row) {
    piece(row.rebuild);
    op(kMark);
    op(kMark);
    storage_tag();
    piece(row.storage_type);
    text(std::to_string(row.key));
    piece(row.location);
    integer(row.numel);
    op(kTuple);
    op(kBinPersId);
    integer(row.offset);
    piece(row.size);
    piece(row.stride);
    op(row.requires_grad != 0 ? kNewTrue : kNewFalse);
    op(kNone);
    if (row.dtype != kNoPiece) piece(row.dtype);
    op(kTuple);
    op(kReduce);
  }

  /// Remembers what is on top of the stack; gives its number.
  std::uint64_t put() {
    numbered(kBinPut, kLongBinPut, memo_end_);
    return memo_end_++;
  }

  void get(std::uint64_t memo) { numbered(kBinGet, kLongBinGet, memo); }

  void reserve(std::size_t nbytes) { out_.reserve(nbytes); }
  std::string take() { return std::move(out_); }

 private:
  void op(char opcode) { out_.push_back(opcode); }

  void little_endian(std::uint64_t value, std::size_t nbytes) {
    for (std::size_t i = 0; i < nbytes; ++i) out_.push_back(static_cast<char>(value >> 8 * i));
  }

  void numbered(char short_opcode, char long_opcode, std::uint64_t number) {
    const bool is_short = number <= 0xff;
    op(is_short ? short_opcode : long_opcode);
    little_endian(number, is_short ? 1 : 4);
  }

  void piece(std::uint64_t index) {
    if (index >= pieces_.size())
      throw ConfigError("a row names piece " + std::to_string(index) + " of " +
                            std::to_string(pieces_.size()) + ".",
                        "rows");
    once(pieces_[index], memo_of_[index]);
  }

  void storage_tag() { once(std::string("X\x07\0\0\0storage", 12), storage_tag_memo_); }

  /// An object: as it is written the first time, as its number then.
  void once(const std::string& definition, std::uint64_t& memo) {
    if (memo != kNoPiece) return get(memo);
    out_ += definition;
    memo = put();
  }

  void text(const std::string& value) {
    op(kBinUnicode);
    little_endian(value.size(), 4);
    out_ += value;
  }

  void integer(std::uint64_t value) {
    if (value <= 0xff) {
      op(kBinInt1);
      little_endian(value, 1);
    } else if (value <= 0xffff) {
      op(kBinInt2);
      little_endian(value, 2);
    } else if (value <= 0x7fffffff) {
      op(kBinInt);
      little_endian(value, 4);
    } else {  // two's complement, to which a zero byte gives room for the sign
      op(kLong1);
      little_endian(9, 1);
      little_endian(value, 8);
      little_endian(0, 1);
    }
  }

  const std::vector<std::string>& pieces_;
  std::vector<std::uint64_t> memo_of_;  ///< of each piece, or kNoPiece before it was written
  std::uint64_t storage_tag_memo_ = kNoPiece;
  std::uint64_t memo_end_;
  std::string out_;
};

}  // namespace

std::string splice_pickle(const std::uint8_t* pickle, std::size_t nbytes,
                          const std::vector<TensorRow>& rows,
                          const std::vector<std::string>& pieces) {
  const Scan found = scan(pickle, nbytes, rows.size());
  std::vector<std::uint32_t> num_uses(rows.size());
  for (const Marker& marker : found.markers) ++num_uses[marker.number];
  std::vector<std::uint64_t> memo_of(rows.size(), kNoPiece);

  Writer writer(pieces, found.memo_end);
  constexpr std::size_t kUsualTensorBytes = 64;
  writer.reserve(nbytes + found.markers.size() * kUsualTensorBytes);
  std::size_t at = 0;
  for (const auto& [begin, end, number] : found.markers) {
    writer.raw(pickle + at, begin - at);
    at = end;
    if (memo_of[number] != kNoPiece) {
      writer.get(memo_of[number]);
      continue;
    }
    writer.tensor(rows[number]);
    if (num_uses[number] > 1) memo_of[number] = writer.put();
  }
  writer.raw(pickle + at, nbytes - at);
  return writer.take();
}

}  // namespace gdsckpt
