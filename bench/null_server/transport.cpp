#include "transport.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#ifndef NULL_SERVER_NO_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

namespace null_server {
namespace {

constexpr std::uint64_t kMaxTransferBytes = 1 << 20;

std::size_t at_most(std::uint64_t nbytes) {
  return static_cast<std::size_t>(std::min(nbytes, kMaxTransferBytes));
}

class PlainTransport : public Transport {
 public:
  explicit PlainTransport(int socket_fd) : fd_(socket_fd) {}
  ~PlainTransport() override { ::close(fd_); }
  PlainTransport(const PlainTransport&) = delete;
  PlainTransport& operator=(const PlainTransport&) = delete;

  std::size_t read(char* into, std::size_t nbytes) override {
    return received(::recv(fd_, into, nbytes, 0));
  }

  /// MSG_TRUNC: the kernel drops the bytes instead of copying them.
  /// Source: tcp(7), "MSG_TRUNC ... causes the received bytes of data to be discarded".
  void discard(std::uint64_t nbytes) override {
    while (nbytes > 0) {
      const std::size_t done = received(::recv(fd_, nullptr, at_most(nbytes), MSG_TRUNC));
      if (done == 0) throw ConnectionLost("the body ended early");
      nbytes -= done;
    }
  }

  void write(const char* from, std::size_t nbytes) override {
    while (nbytes > 0) {
      const ssize_t done = ::send(fd_, from, nbytes, MSG_NOSIGNAL);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) throw ConnectionLost("send failed");
      from += done;
      nbytes -= static_cast<std::size_t>(done);
    }
  }

  void write_file(const SourceFile& file, std::uint64_t offset, std::uint64_t nbytes) override {
    off_t at = static_cast<off_t>(offset);
    while (nbytes > 0) {
      const ssize_t done = ::sendfile(fd_, file.fd(), &at, at_most(nbytes));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) throw ConnectionLost("sendfile failed");
      nbytes -= static_cast<std::uint64_t>(done);
    }
  }

 private:
  static std::size_t received(ssize_t result) {
    if (result < 0) throw ConnectionLost("recv failed");
    return static_cast<std::size_t>(result);
  }

  const int fd_;
};

#ifndef NULL_SERVER_NO_TLS

class TlsTransport : public Transport {
 public:
  TlsTransport(int socket_fd, SSL_CTX* context) : fd_(socket_fd), ssl_(SSL_new(context)) {
    if (ssl_ == nullptr || SSL_set_fd(ssl_, fd_) != 1 || SSL_accept(ssl_) != 1) {
      close();
      throw ConnectionLost("the TLS handshake failed");
    }
  }
  ~TlsTransport() override {
    SSL_shutdown(ssl_);
    close();
  }
  TlsTransport(const TlsTransport&) = delete;
  TlsTransport& operator=(const TlsTransport&) = delete;

  std::size_t read(char* into, std::size_t nbytes) override {
    std::size_t done = 0;
    if (SSL_read_ex(ssl_, into, nbytes, &done) == 1) return done;
    return 0;
  }

  void discard(std::uint64_t nbytes) override {
    while (nbytes > 0) {
      const std::size_t wanted = std::min(at_most(nbytes), scratch_.size());
      const std::size_t done = read(scratch_.data(), wanted);
      if (done == 0) throw ConnectionLost("the body ended early");
      nbytes -= done;
    }
  }

  void write(const char* from, std::size_t nbytes) override {
    while (nbytes > 0) {
      std::size_t done = 0;
      if (SSL_write_ex(ssl_, from, at_most(nbytes), &done) != 1) {
        throw ConnectionLost("SSL_write failed");
      }
      from += done;
      nbytes -= done;
    }
  }

  void write_file(const SourceFile& file, std::uint64_t offset, std::uint64_t nbytes) override {
    write(file.data() + offset, nbytes);
  }

 private:
  void close() noexcept {
    SSL_free(ssl_);
    ::close(fd_);
  }

  const int fd_;
  SSL* const ssl_;
  std::vector<char> scratch_ = std::vector<char>(64 << 10);
};

#endif

}  // namespace

SourceFile::SourceFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat status{};
  if (fd_ < 0 || ::fstat(fd_, &status) != 0) {
    throw std::system_error(errno, std::generic_category(), path);
  }
  nbytes_ = static_cast<std::uint64_t>(status.st_size);
  if (nbytes_ == 0) return;
  void* const mapped = ::mmap(nullptr, nbytes_, PROT_READ, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), path);
  data_ = static_cast<char*>(mapped);
}

SourceFile::~SourceFile() {
  if (data_ != nullptr) ::munmap(data_, nbytes_);
  ::close(fd_);
}

#ifdef NULL_SERVER_NO_TLS

TlsContext::TlsContext(const std::string&, const std::string&) {
  throw std::runtime_error("built without OpenSSL");
}
TlsContext::~TlsContext() = default;

std::unique_ptr<Transport> make_transport(int socket_fd, const TlsContext*) {
  return std::make_unique<PlainTransport>(socket_fd);
}

#else

TlsContext::TlsContext(const std::string& certificate_path, const std::string& key_path) {
  SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
  context_ = context;
  // TLS 1.3 and one suite for all, so that clients differ by their code and not by their taste.
  const bool is_ready =
      context != nullptr && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
      SSL_CTX_use_certificate_chain_file(context, certificate_path.c_str()) == 1 &&
      SSL_CTX_use_PrivateKey_file(context, key_path.c_str(), SSL_FILETYPE_PEM) == 1;
  if (!is_ready) {
    const unsigned long code = ERR_get_error();
    SSL_CTX_free(context);
    throw std::runtime_error(std::string("no TLS context: ") + ERR_error_string(code, nullptr));
  }
}

TlsContext::~TlsContext() { SSL_CTX_free(static_cast<SSL_CTX*>(context_)); }

std::unique_ptr<Transport> make_transport(int socket_fd, const TlsContext* tls) {
  if (tls == nullptr) return std::make_unique<PlainTransport>(socket_fd);
  return std::make_unique<TlsTransport>(socket_fd, static_cast<SSL_CTX*>(tls->get()));
}

#endif

}  // namespace null_server
