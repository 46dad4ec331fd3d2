#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace null_server {

/// The client went away, or spoke no TLS; the connection ends without an answer.
class ConnectionLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The file whose bytes every large object has: open, and mapped for TLS.
class SourceFile {
 public:
  /// Throws std::system_error when the file cannot be opened or mapped.
  explicit SourceFile(const std::string& path);
  ~SourceFile();
  SourceFile(const SourceFile&) = delete;
  SourceFile& operator=(const SourceFile&) = delete;

  int fd() const noexcept { return fd_; }
  std::uint64_t nbytes() const noexcept { return nbytes_; }
  const char* data() const noexcept { return data_; }

 private:
  int fd_;
  std::uint64_t nbytes_ = 0;
  char* data_ = nullptr;
};

/// One accepted connection. Used by one thread. All methods throw ConnectionLost.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Gives at least one and at most `nbytes` bytes; 0 at the end of the stream.
  virtual std::size_t read(char* into, std::size_t nbytes) = 0;
  /// Takes `nbytes` bytes off the stream without keeping them.
  virtual void discard(std::uint64_t nbytes) = 0;
  virtual void write(const char* from, std::size_t nbytes) = 0;
  virtual void write_file(const SourceFile& file, std::uint64_t offset, std::uint64_t nbytes) = 0;
};

/// What TLS connections are made of: the certificate and its key. Owns an OpenSSL context.
class TlsContext {
 public:
  /// Throws std::runtime_error when the files do not fit, or when built without OpenSSL.
  TlsContext(const std::string& certificate_path, const std::string& key_path);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  void* get() const noexcept { return context_; }

 private:
  void* context_ = nullptr;
};

/// Takes a socket over (it is closed with the transport); `tls` null for plain HTTP.
std::unique_ptr<Transport> make_transport(int socket_fd, const TlsContext* tls);

}  // namespace null_server
