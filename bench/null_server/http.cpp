#include "http.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace null_server {
namespace {

constexpr std::size_t kReadBytes = 16 << 10;
constexpr std::size_t kMaxLineBytes = 64 << 10;
/// A checksum trailer inside a body of known length stands in its last bytes.
constexpr std::uint64_t kTrailerBytes = 512;

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::uint64_t number(std::string_view text, int base) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end == text.data()) throw BadRequest("not a number");
  return value;
}

std::string decoded(std::string_view text, bool plus_is_space) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      result.push_back(static_cast<char>(number(text.substr(i + 1, 2), 16)));
      i += 2;
    } else {
      result.push_back(text[i] == '+' && plus_is_space ? ' ' : text[i]);
    }
  }
  return result;
}

std::map<std::string, std::string> parse_query(std::string_view text) {
  std::map<std::string, std::string> query;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view value = pair.substr(std::min(equals + 1, pair.size()));
    if (!pair.empty()) query[decoded(pair.substr(0, equals), true)] = decoded(value, true);
  }
  return query;
}

void parse_header(std::string_view line, std::map<std::string, std::string>& into) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) throw BadRequest("a header without a colon");
  into[lower(line.substr(0, colon))] = std::string(trimmed(line.substr(colon + 1)));
}

/// Finds "x-amz-checksum-...: value" lines at the end of an aws-chunked body.
void parse_tail(std::string_view tail, std::map<std::string, std::string>& into) {
  std::size_t at = 0;
  while ((at = tail.find("x-amz-checksum-", at)) != std::string_view::npos) {
    const std::size_t end = std::min(tail.find_first_of("\r\n", at), tail.size());
    const std::string_view line = tail.substr(at, end - at);
    if (line.find(':') != std::string_view::npos) parse_header(line, into);
    at = end;
  }
}

const char* reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 206:
      return "Partial Content";
    case 404:
      return "Not Found";
    case 412:
      return "Precondition Failed";
    case 416:
      return "Range Not Satisfiable";
    case 501:
      return "Not Implemented";
    default:
      return "Bad Request";
  }
}

}  // namespace

const std::string* Request::header(std::string_view name) const {
  const auto found = headers.find(std::string(name));
  return found == headers.end() ? nullptr : &found->second;
}

std::optional<Request> RequestReader::next() {
  if (begin_ == buffer_.size()) {
    buffer_.resize(kReadBytes);
    begin_ = 0;
    buffer_.resize(transport_.read(buffer_.data(), kReadBytes));
    if (buffer_.empty()) return std::nullopt;
  }
  const std::string first = line();
  const std::size_t space = first.find(' ');
  const std::size_t second_space = first.find(' ', space + 1);
  if (space == std::string::npos || second_space == std::string::npos) {
    throw BadRequest("no request line");
  }
  Request request;
  request.method = first.substr(0, space);
  const std::string target = first.substr(space + 1, second_space - space - 1);
  const std::size_t mark = std::min(target.find('?'), target.size());
  request.path = decoded(std::string_view(target).substr(0, mark), false);
  request.path.erase(0, request.path.find_first_not_of('/'));
  request.query = parse_query(std::string_view(target).substr(std::min(mark + 1, target.size())));
  for (std::string header = line(); !header.empty(); header = line()) {
    parse_header(header, request.headers);
  }
  return request;
}

Body RequestReader::body(const Request& request, std::uint64_t keep_max_bytes) {
  const std::string* const expect = request.header("expect");
  if (expect != nullptr && lower(*expect) == "100-continue") {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    transport_.write(kContinue.data(), kContinue.size());
  }
  Body body;
  const std::string* const encoding = request.header("transfer-encoding");
  const std::string* const length = request.header("content-length");
  if (encoding != nullptr && lower(*encoding) == "chunked") {
    body = chunked_body(keep_max_bytes);
  } else if (length != nullptr) {
    body = counted_body(request, number(*length, 10), keep_max_bytes);
  }
  const std::string* const inner = request.header("x-amz-decoded-content-length");
  if (inner != nullptr) body.nbytes = number(*inner, 10);
  return body;
}

Body RequestReader::counted_body(const Request& request, std::uint64_t nbytes,
                                 std::uint64_t keep_max_bytes) {
  Body body;
  body.nbytes = nbytes;
  const bool is_framed = request.header("x-amz-decoded-content-length") != nullptr;
  if (nbytes <= keep_max_bytes && !is_framed) {
    body.text = take(nbytes);
  } else if (is_framed) {
    const std::uint64_t tail_nbytes = std::min(nbytes, kTrailerBytes);
    skip(nbytes - tail_nbytes);
    parse_tail(take(tail_nbytes), body.trailers);
  } else {
    skip(nbytes);
  }
  return body;
}

Body RequestReader::chunked_body(std::uint64_t keep_max_bytes) {
  Body body;
  for (;;) {
    const std::string head = line();
    const std::uint64_t nbytes = number(std::string_view(head).substr(0, head.find(';')), 16);
    if (nbytes == 0) break;
    body.nbytes += nbytes;
    if (body.nbytes <= keep_max_bytes) {
      body.text += take(nbytes);
    } else {
      body.text.clear();
      skip(nbytes);
    }
    if (!line().empty()) throw BadRequest("a chunk is longer than it says");
  }
  for (std::string trailer = line(); !trailer.empty(); trailer = line()) {
    parse_header(trailer, body.trailers);
  }
  return body;
}

std::string RequestReader::line() {
  std::size_t searched = begin_;
  for (;;) {
    const std::size_t end = buffer_.find("\r\n", searched);
    if (end != std::string::npos) {
      std::string result = buffer_.substr(begin_, end - begin_);
      begin_ = end + 2;
      return result;
    }
    if (buffer_.size() - begin_ > kMaxLineBytes) throw BadRequest("a line is too long");
    fill();
    searched = begin_;
  }
}

void RequestReader::fill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const std::size_t had = buffer_.size();
  buffer_.resize(had + kReadBytes);
  const std::size_t done = transport_.read(buffer_.data() + had, kReadBytes);
  buffer_.resize(had + done);
  if (done == 0) throw ConnectionLost("the stream ended within a request");
}

void RequestReader::skip(std::uint64_t nbytes) {
  const std::uint64_t buffered = std::min<std::uint64_t>(nbytes, buffer_.size() - begin_);
  begin_ += static_cast<std::size_t>(buffered);
  transport_.discard(nbytes - buffered);
}

std::string RequestReader::take(std::uint64_t nbytes) {
  while (buffer_.size() - begin_ < nbytes) fill();
  std::string result = buffer_.substr(begin_, static_cast<std::size_t>(nbytes));
  begin_ += static_cast<std::size_t>(nbytes);
  return result;
}

void send_response(Transport& transport, const Response& response, const SourceFile& file) {
  const bool is_file = response.file_offset.has_value();
  const std::uint64_t nbytes =
      response.announced_nbytes.value_or(is_file ? response.file_nbytes : response.text.size());
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " + reason(response.status);
  head += "\r\nServer: null\r\nx-amz-request-id: 0\r\n";
  if (response.status != 204) head += "Content-Length: " + std::to_string(nbytes) + "\r\n";
  for (const auto& [name, value] : response.headers) head += name + ": " + value + "\r\n";
  head += "\r\n";
  if (!response.announced_nbytes && !is_file) head += response.text;
  transport.write(head.data(), head.size());
  if (is_file && !response.announced_nbytes) {
    transport.write_file(file, *response.file_offset, response.file_nbytes);
  }
}

}  // namespace null_server
