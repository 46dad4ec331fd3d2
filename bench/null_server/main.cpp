// A null S3 server for benchmarks of clients: it throws away what it receives and sends one file.
//
//   null_server FILE BUCKET/KEY [CERTIFICATE KEY]
//
// Listens on a free port of 127.0.0.1, prints the port, ends with its parent or by a signal. With a
// certificate it speaks TLS 1.3, else plain HTTP. FILE's bytes are the object BUCKET/KEY.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>

#include "http.hpp"
#include "service.hpp"
#include "transport.hpp"

namespace null_server {
namespace {

/// Gives a listening socket; its port goes to `port`.
int listen_on_loopback(std::uint16_t& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t nbytes = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || ::bind(fd, raw, nbytes) != 0 || ::listen(fd, 512) != 0 ||
      ::getsockname(fd, raw, &nbytes) != 0) {
    throw std::system_error(errno, std::generic_category(), "listening on 127.0.0.1");
  }
  port = ntohs(address.sin_port);
  return fd;
}

void serve(Transport& transport, Service& service, const SourceFile& file) {
  RequestReader reader(transport);
  while (const std::optional<Request> request = reader.next()) {
    const Body body = reader.body(*request, Service::keep_max_bytes(*request));
    Response response = service.answer(*request, body);
    if (request->method == "HEAD" && !response.announced_nbytes) response.announced_nbytes = 0;
    send_response(transport, response, file);
    const std::string* const connection = request->header("connection");
    if (connection != nullptr && *connection == "close") break;
  }
}

void serve_connection(int fd, const TlsContext* tls, Service& service, const SourceFile& file) {
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // only a matter of speed
  try {
    const std::unique_ptr<Transport> transport = make_transport(fd, tls);
    try {
      serve(*transport, service, file);
    } catch (const BadRequest& failure) {
      std::fprintf(stderr, "null_server: bad request: %s\n", failure.what());
      send_response(*transport, {400, {{"Connection", "close"}}, failure.what(), {}, {}, 0}, file);
    }
  } catch (const ConnectionLost&) {
    return;  // clients may leave whenever they like
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "null_server: %s\n", failure.what());
  }
}

int run(int argc, char** argv) {
  if (argc != 3 && argc != 5) {
    std::fprintf(stderr, "usage: null_server FILE BUCKET/KEY [CERTIFICATE KEY]\n");
    return 2;
  }
  if (::prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) return 1;
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  const SourceFile file(argv[1]);
  Service service(file, argv[2]);
  std::unique_ptr<TlsContext> tls;
  if (argc == 5) tls = std::make_unique<TlsContext>(argv[3], argv[4]);
  std::uint16_t port = 0;
  const int listening = listen_on_loopback(port);
  std::printf("%u\n", port);
  std::fflush(stdout);
  for (;;) {
    const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) throw std::system_error(errno, std::generic_category(), "accept");
    std::thread(serve_connection, fd, tls.get(), std::ref(service), std::cref(file)).detach();
  }
}

}  // namespace
}  // namespace null_server

int main(int argc, char** argv) {
  try {
    return null_server::run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "null_server: %s\n", failure.what());
    return 1;
  }
}
