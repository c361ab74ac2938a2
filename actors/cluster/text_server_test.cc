#include "actors/cluster/text_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/machine.h"

namespace penstock::actors {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class TextServerTest : public ::testing::Test {
 protected:
  void Start(
      TextServerOptions options = {},
      Answers<std::string>::Source source = [] { return std::string("x 1\n"); }) {
    auto server = TextServer::Start(options, std::move(source));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const std::string& url = server_->url();
    const size_t colon = url.rfind(':');
    port_ = std::stoi(url.substr(colon + 1));
  }

  int Connect() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in where = {};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    where.sin_port = htons(static_cast<uint16_t>(port_));
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&where), sizeof(where)), 0);
    const timeval bound{20, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound));
    return fd;
  }

  // What comes back to `request` until the connection is closed.
  std::string Say(std::string_view request) const {
    const int fd = Connect();
    (void)!send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    std::string answer;
    char buffer[4096];
    ssize_t size = 0;
    while ((size = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
      answer.append(buffer, static_cast<size_t>(size));
    }
    close(fd);
    return answer;
  }

  std::string Get(std::string_view path, std::string_view host) const {
    return Say("GET " + std::string(path) + " HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n");
  }

  std::unique_ptr<TextServer> server_;
  int port_ = 0;
};

TEST_F(TextServerTest, ServesTheText) {
  Start();
  EXPECT_THAT(server_->url(), StartsWith("http://127.0.0.1:"));
  EXPECT_THAT(server_->url(), EndsWith("/metrics"));
  for (const char* host : {"localhost", "localhost:9090", "127.0.0.1:1", "127.0.0.2", "[::1]:80"}) {
    const std::string answer = Get("/metrics", host);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n")) << host;
    EXPECT_THAT(answer, HasSubstr("text/plain; version=0.0.4"));
    EXPECT_THAT(answer, EndsWith("\r\n\r\nx 1\n"));
  }
  EXPECT_THAT(Get("/metrics?a=b", "localhost"), StartsWith("HTTP/1.1 200"));
}

TEST_F(TextServerTest, RefusesTheNamesOfOtherHosts) {
  Start();
  for (const char* host : {"evil.example", "evil.example:9090", "localhost.evil.example",
                           "127.evil.example", "10.0.0.1", "12.7.0.0", ""}) {
    const std::string answer = Get("/metrics", host);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 403")) << host;
    EXPECT_THAT(answer, Not(HasSubstr("x 1")));
  }
  EXPECT_THAT(Say("GET /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 403"));
}

TEST_F(TextServerTest, WhereItListensToOthersItsNameOrAnAddressWillDo) {
  TextServerOptions options;
  options.host = "0.0.0.0";
  Start(options);
  for (const std::string& host : {std::string("10.0.0.1:9090"), std::string("[fe80::1]:9090"),
                                  std::string("localhost"), HostName(), HostName() + ":9090"}) {
    EXPECT_THAT(Get("/metrics", host), StartsWith("HTTP/1.1 200")) << host;
  }
  for (const std::string& host :
       {std::string("evil.example:9090"), HostName() + ".evil.example", std::string()}) {
    EXPECT_THAT(Get("/metrics", host), StartsWith("HTTP/1.1 403")) << host;
  }
}

TEST_F(TextServerTest, PagesOfOtherServersAreRefused) {
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
    TextServerOptions options;
    options.host = host;
    Start(options);
    const auto get = [this](const std::string& origin) {
      return Say("GET /metrics HTTP/1.1\r\nHost: localhost:9090\r\nOrigin: " + origin + "\r\n\r\n");
    };
    for (const char* origin : {"http://evil.example", "null", "https://localhost:9090",
                               "http://localhost:9091", "http://localhost"}) {
      EXPECT_THAT(get(origin), StartsWith("HTTP/1.1 403")) << origin;
    }
    EXPECT_THAT(get("http://localhost:9090"), StartsWith("HTTP/1.1 200"));
  }
}

TEST_F(TextServerTest, RefusesWhatItDoesNotServe) {
  Start();
  EXPECT_THAT(Get("/", "localhost"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get("/metrics/../etc/passwd", "localhost"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Say("DELETE /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
  const std::string head = Say("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(head, Not(HasSubstr("x 1")));
  EXPECT_THAT(Say("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 "));
  EXPECT_THAT(Get("/metrics", "localhost"), StartsWith("HTTP/1.1 200"));
}

TEST_F(TextServerTest, AnErrorOfTheSourceIsToldAsSuch) {
  Start({}, []() -> absl::StatusOr<std::string> { return absl::AbortedError("not today"); });
  const std::string answer = Get("/metrics", "localhost");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(answer, HasSubstr("not today"));
}

TEST_F(TextServerTest, SilentClientsBlockNobody) {
  Start();
  std::vector<int> silent;
  for (size_t i = 0; i < 3 * kMaxTextConnections; ++i) {
    silent.push_back(Connect());
    const std::string_view part = "GET /metrics HTTP/1.1\r\nHos";
    if (i % 2 == 1) (void)!send(silent.back(), part.data(), part.size(), MSG_NOSIGNAL);
  }
  EXPECT_THAT(Get("/metrics", "localhost"), StartsWith("HTTP/1.1 200"));
  for (const int fd : silent) close(fd);
}

TEST_F(TextServerTest, ATakenPortIsAnError) {
  Start();
  TextServerOptions options;
  options.port = static_cast<unsigned>(port_);
  const auto second = TextServer::Start(options, [] { return std::string(); });
  EXPECT_EQ(second.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("cannot listen at 127.0.0.1:"));
}

}  // namespace
}  // namespace penstock::actors
