#include "service.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace null_server {
namespace {

constexpr std::uint64_t kMaxXmlBytes = 4 << 20;
constexpr std::uint64_t kMaxSmallBytes = 1 << 20;
constexpr const char* kLastModified = "Sun, 29 Nov 2026 00:00:00 GMT";
constexpr const char* kLastModifiedXml = "2026-11-29T00:00:00.000Z";

Response error(int status, const std::string& code) {
  Response response;
  response.status = status;
  response.headers.emplace_back("Content-Type", "application/xml");
  response.text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>" + code +
                  "</Code><Message>" + code + "</Message></Error>";
  return response;
}

Response xml(const std::string& root, const std::string& inside) {
  Response response;
  response.headers.emplace_back("Content-Type", "application/xml");
  response.text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><" + root +
                  " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">" + inside + "</" + root +
                  ">";
  return response;
}

std::string element(const std::string& name, const std::string& value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else {
      escaped += c;
    }
  }
  return "<" + name + ">" + escaped + "</" + name + ">";
}

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

std::string bucket_of(const std::string& path) { return path.substr(0, path.find('/')); }
std::string key_of(const std::string& path) {
  const std::size_t slash = path.find('/');
  return slash == std::string::npos ? std::string() : path.substr(slash + 1);
}

std::uint64_t number(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) {
    throw BadRequest("not a number");
  }
  return value;
}

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string hex_of_base64(const std::string& text) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string result;
  unsigned bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const std::size_t value = kLetters.find(c);
    if (value == std::string_view::npos) break;
    bits = (bits << 6) | static_cast<unsigned>(value);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      char pair[3];
      std::snprintf(pair, sizeof pair, "%02x", (bits >> num_bits) & 0xff);
      result += pair;
    }
  }
  return result;
}

/// The MD5 that the client sent, which is what S3's own ETag would be, or 32 digits that change
/// with `seed`: the body was not looked at.
std::string etag_for(const Request& request, const std::string& seed) {
  const std::string* const md5 = request.header("content-md5");
  if (md5 != nullptr) return hex_of_base64(*md5);
  return hex(std::hash<std::string>()(seed)) + hex(std::hash<std::string>()(seed + "."));
}

bool begins_with(const std::string& text, std::string_view prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

using Headers = std::vector<std::pair<std::string, std::string>>;

Headers selected(const std::map<std::string, std::string>& from, std::string_view prefix) {
  Headers result;
  for (const auto& [name, value] : from) {
    if (begins_with(name, prefix)) result.emplace_back(name, value);
  }
  return result;
}

void append(Headers& to, const Headers& from) { to.insert(to.end(), from.begin(), from.end()); }

/// Checksums of a body, from its headers or from behind it; not the names of algorithms.
Headers checksums_of(const Request& request, const Body& body) {
  Headers result = selected(request.headers, "x-amz-checksum-");
  append(result, selected(body.trailers, "x-amz-checksum-"));
  return result;
}

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Gives the bytes asked for, none for an unsatisfiable range; all of them without a range.
std::optional<Range> range_of(const std::string* header, std::uint64_t nbytes) {
  Range range{0, nbytes};
  if (header == nullptr || !begins_with(*header, "bytes=")) return range;
  const std::string text = header->substr(6);
  const std::size_t dash = text.find('-');
  if (dash == std::string::npos) throw BadRequest("a range without a dash");
  const std::string first = text.substr(0, dash);
  const std::string last = text.substr(dash + 1);
  if (first.empty()) {
    range.begin = nbytes - std::min(nbytes, number(last));
  } else {
    range.begin = number(first);
    if (!last.empty()) range.end = std::min(nbytes, number(last) + 1);
  }
  if (range.begin >= range.end) return std::nullopt;
  return range;
}

}  // namespace

Service::Service(const SourceFile& file, const std::string& object) : file_(file) {
  // With "-N", as large objects have it: clients take a plain one for the MD5 and compute it.
  objects_[object] = {file.nbytes(), std::string(32, '0') + "-2", {}, {}, std::nullopt};
}

std::uint64_t Service::keep_max_bytes(const Request& request) {
  if (request.method == "POST") return kMaxXmlBytes;
  return request.has_query("uploadId") ? 0 : kMaxSmallBytes;
}

Response Service::answer(const Request& request, const Body& body) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (key_of(request.path).empty() && request.method != "POST") return bucket(request);
  if (request.method == "PUT") return put(request, body);
  if (request.method == "POST") return post(request, body);
  if (request.method == "DELETE") return remove(request);
  if (request.method == "HEAD") return object(request, true);
  if (request.method != "GET") return error(501, "NotImplemented");
  return request.has_query("uploadId") ? list_parts(request) : object(request, false);
}

Response Service::put(const Request& request, const Body& body) {
  return request.has_query("uploadId") ? put_part(request, body) : put_object(request, body);
}

Response Service::post(const Request& request, const Body& body) {
  if (request.has_query("uploads")) return create_upload(request);
  if (request.has_query("uploadId")) return complete_upload(request, body);
  return error(501, "NotImplemented");
}

Response Service::bucket(const Request& request) const {
  if (request.method == "DELETE") return {204, {}, {}, {}, {}, 0};
  if (request.method != "GET") return {};
  if (request.has_query("location")) return xml("LocationConstraint", "us-east-1");
  if (request.has_query("uploads")) {
    return xml("ListMultipartUploadsResult", element("IsTruncated", "false"));
  }
  return list_objects(request);
}

Response Service::list_objects(const Request& request) const {
  const auto prefix = request.query.find("prefix");
  const std::string from =
      bucket_of(request.path) + "/" + (prefix == request.query.end() ? "" : prefix->second);
  std::string found;
  std::size_t count = 0;
  for (auto at = objects_.lower_bound(from); at != objects_.end(); ++at, ++count) {
    if (!begins_with(at->first, from)) break;
    found += "<Contents>" + element("Key", key_of(at->first)) +
             element("LastModified", kLastModifiedXml) + element("ETag", quoted(at->second.etag)) +
             element("Size", std::to_string(at->second.nbytes)) +
             element("StorageClass", "STANDARD") + "</Contents>";
  }
  return xml("ListBucketResult",
             element("Name", bucket_of(request.path)) + element("KeyCount", std::to_string(count)) +
                 element("MaxKeys", "1000") + element("IsTruncated", "false") + found);
}

Response Service::object(const Request& request, bool is_head) const {
  const auto found = objects_.find(request.path);
  if (found == objects_.end()) return error(404, "NoSuchKey");
  const Object& object = found->second;
  const std::string* const if_match = request.header("if-match");
  if (if_match != nullptr && *if_match != quoted(object.etag) && *if_match != object.etag) {
    return error(412, "PreconditionFailed");
  }
  if (!object.text && object.nbytes > file_.nbytes()) return error(501, "NotImplemented");
  const std::string* const asked = request.header("range");
  const std::optional<Range> range = range_of(asked, object.nbytes);
  if (!range && object.nbytes > 0) return error(416, "InvalidRange");
  Response response;
  response.headers = object.headers;
  append(response.headers, {{"ETag", quoted(object.etag)},
                            {"Last-Modified", kLastModified},
                            {"Accept-Ranges", "bytes"},
                            {"Content-Type", "application/octet-stream"}});
  if (request.header("x-amz-checksum-mode") != nullptr && asked == nullptr) {
    append(response.headers, object.checksums);
  }
  const std::uint64_t begin = range ? range->begin : 0;
  const std::uint64_t nbytes = range ? range->end - range->begin : 0;
  if (asked != nullptr) {
    response.status = 206;
    response.headers.emplace_back("Content-Range", "bytes " + std::to_string(begin) + "-" +
                                                       std::to_string(begin + nbytes - 1) + "/" +
                                                       std::to_string(object.nbytes));
  }
  if (is_head) {
    response.announced_nbytes = nbytes;
  } else if (object.text) {
    response.text = object.text->substr(begin, nbytes);
  } else {
    response.file_offset = begin;
    response.file_nbytes = nbytes;
  }
  return response;
}

Response Service::put_object(const Request& request, const Body& body) {
  if (request.header("if-none-match") != nullptr && objects_.count(request.path) != 0) {
    return error(412, "PreconditionFailed");
  }
  Object object;
  object.nbytes = body.nbytes;
  object.etag = etag_for(request, request.path + std::to_string(body.nbytes));
  object.headers = selected(request.headers, "x-amz-meta-");
  object.checksums = checksums_of(request, body);
  if (body.text.size() == body.nbytes) object.text = body.text;
  Response response;
  response.headers = object.checksums;
  response.headers.emplace_back("ETag", quoted(object.etag));
  objects_[request.path] = object;
  return response;
}

Response Service::create_upload(const Request& request) {
  const std::string id = "upload" + std::to_string(next_upload_++);
  uploads_[id] = {request.path, selected(request.headers, "x-amz-meta-"), {}};
  Response response = xml("InitiateMultipartUploadResult",
                          element("Bucket", bucket_of(request.path)) +
                              element("Key", key_of(request.path)) + element("UploadId", id));
  append(response.headers, selected(request.headers, "x-amz-checksum-"));
  return response;
}

Response Service::put_part(const Request& request, const Body& body) {
  const auto upload = uploads_.find(request.query.at("uploadId"));
  if (upload == uploads_.end()) return error(404, "NoSuchUpload");
  const auto part_number = request.query.find("partNumber");
  if (part_number == request.query.end()) return error(400, "InvalidArgument");
  const std::string etag = etag_for(request, upload->first + "/" + part_number->second);
  upload->second.parts[number(part_number->second)] = {body.nbytes, etag};
  Response response;
  response.headers = checksums_of(request, body);
  response.headers.emplace_back("ETag", quoted(etag));
  return response;
}

Response Service::list_parts(const Request& request) const {
  const auto upload = uploads_.find(request.query.at("uploadId"));
  if (upload == uploads_.end()) return error(404, "NoSuchUpload");
  std::string found = element("Bucket", bucket_of(request.path)) +
                      element("Key", key_of(request.path)) + element("UploadId", upload->first) +
                      element("IsTruncated", "false");
  for (const auto& [part_number, part] : upload->second.parts) {
    found += "<Part>" + element("PartNumber", std::to_string(part_number)) +
             element("LastModified", kLastModifiedXml) + element("ETag", quoted(part.etag)) +
             element("Size", std::to_string(part.nbytes)) + "</Part>";
  }
  return xml("ListPartsResult", found);
}

Response Service::complete_upload(const Request& request, const Body& body) {
  const auto upload = uploads_.find(request.query.at("uploadId"));
  if (upload == uploads_.end() || upload->second.path != request.path) {
    return error(404, "NoSuchUpload");
  }
  constexpr std::string_view kTag = "<PartNumber>";
  Object object;
  std::size_t count = 0;
  for (std::size_t at = body.text.find(kTag); at != std::string::npos;
       at = body.text.find(kTag, at + 1), ++count) {
    const std::size_t begin = at + kTag.size();
    const std::string text = body.text.substr(begin, body.text.find('<', begin) - begin);
    const auto part = upload->second.parts.find(number(text));
    if (part == upload->second.parts.end()) return error(400, "InvalidPart");
    object.nbytes += part->second.nbytes;
  }
  if (count == 0) return error(400, "MalformedXML");
  object.etag = etag_for(request, upload->first) + "-" + std::to_string(count);
  object.headers = upload->second.headers;
  object.checksums = checksums_of(request, body);
  Response response =
      xml("CompleteMultipartUploadResult",
          element("Location", "/" + request.path) + element("Bucket", bucket_of(request.path)) +
              element("Key", key_of(request.path)) + element("ETag", quoted(object.etag)));
  objects_[request.path] = object;
  uploads_.erase(upload);
  return response;
}

Response Service::remove(const Request& request) {
  if (request.has_query("uploadId")) {
    uploads_.erase(request.query.at("uploadId"));
  } else {
    objects_.erase(request.path);
  }
  return {204, {}, {}, {}, {}, 0};
}

}  // namespace null_server
