#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "http.hpp"

namespace null_server {

/// As much of Amazon S3 as the clients of the benchmark use, path-style, without signatures.
///
/// Bodies of parts are not kept: a large object has the bytes of the source file, whatever was
/// sent. Sizes, ETags, checksums and metadata are those that were sent. Any thread may call.
class Service {
 public:
  /// `object`: "bucket/key" of the object that is there from the start.
  Service(const SourceFile& file, const std::string& object);

  /// Largest body that `answer` wants to see.
  static std::uint64_t keep_max_bytes(const Request& request);
  Response answer(const Request& request, const Body& body);

 private:
  using Headers = std::vector<std::pair<std::string, std::string>>;
  struct Object {
    std::uint64_t nbytes = 0;
    std::string etag;
    Headers headers;
    /// Only sent to who asks with x-amz-checksum-mode.
    Headers checksums;
    /// Small bodies are kept; others have the bytes of the file.
    std::optional<std::string> text;
  };
  struct Part {
    std::uint64_t nbytes = 0;
    std::string etag;
  };
  struct Upload {
    std::string path;
    Headers headers;
    std::map<std::uint64_t, Part> parts;
  };

  Response bucket(const Request& request) const;
  Response list_objects(const Request& request) const;
  Response object(const Request& request, bool is_head) const;
  Response put_object(const Request& request, const Body& body);
  Response create_upload(const Request& request);
  Response put_part(const Request& request, const Body& body);
  Response list_parts(const Request& request) const;
  Response complete_upload(const Request& request, const Body& body);
  Response remove(const Request& request);
  Response put(const Request& request, const Body& body);
  Response post(const Request& request, const Body& body);

  const SourceFile& file_;
  mutable std::mutex mutex_;
  std::map<std::string, Object> objects_;
  std::map<std::string, Upload> uploads_;
  std::uint64_t next_upload_ = 1;
};

}  // namespace null_server
