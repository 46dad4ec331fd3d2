#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport.hpp"

namespace null_server {

/// What a client may not send: it is answered with 400 and the connection is closed.
class BadRequest : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One request without its body.
struct Request {
  std::string method;
  /// Decoded, without the leading slash of the bucket.
  std::string path;
  /// Decoded; a name without "=" has an empty value.
  std::map<std::string, std::string> query;
  /// Names in lower case.
  std::map<std::string, std::string> headers;

  /// Null when it was not sent.
  const std::string* header(std::string_view name) const;
  bool has_query(std::string_view name) const {
    return query.find(std::string(name)) != query.end();
  }
};

/// What came as a body.
struct Body {
  /// Bytes of the object, without any framing.
  std::uint64_t nbytes = 0;
  /// The bytes, where they were asked for and are few.
  std::string text;
  /// Checksum headers that came after the body, names in lower case.
  std::map<std::string, std::string> trailers;
};

/// Reads requests from one connection, one after the other. Used by one thread.
class RequestReader {
 public:
  explicit RequestReader(Transport& transport) : transport_(transport) {}

  /// None at the end of the stream.
  std::optional<Request> next();
  /// Takes the body of the last request off the stream. Bodies of at most `keep_max_bytes` are
  /// kept, larger ones thrown away as they come. To be called exactly once per request.
  Body body(const Request& request, std::uint64_t keep_max_bytes);

 private:
  Body counted_body(const Request& request, std::uint64_t nbytes, std::uint64_t keep_max_bytes);
  Body chunked_body(std::uint64_t keep_max_bytes);
  /// Reads up to and with the next CRLF; gives the line without it.
  std::string line();
  void fill();
  void skip(std::uint64_t nbytes);
  std::string take(std::uint64_t nbytes);

  Transport& transport_;
  std::string buffer_;
  std::size_t begin_ = 0;
};

/// One answer: a head with a text, or with a range of the file.
struct Response {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string text;
  /// For HEAD: announced, and not sent.
  std::optional<std::uint64_t> announced_nbytes;
  /// Range of the file to send in place of `text`.
  std::optional<std::uint64_t> file_offset;
  std::uint64_t file_nbytes = 0;
};

/// Sends an answer.
void send_response(Transport& transport, const Response& response, const SourceFile& file);

}  // namespace null_server
