#include "transport/ucx/tcp_links.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace penstock::transport::ucx {
namespace {

constexpr std::chrono::milliseconds kInterval{1000};

sockaddr_in Loopback() {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void AddTo(int epoll_fd, int fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event), 0);
}

TEST(TcpLinksTest, AreThoseOfTheSetsWithinASet) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  const int outer = epoll_create1(0);
  const int inner = epoll_create1(0);
  sockaddr_in address = Loopback();
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), size), 0);
  const int server = accept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0);
  AddTo(outer, inner);
  AddTo(outer, listener);
  EXPECT_TRUE(ReadTcpLinks(outer, kInterval).empty());
  AddTo(inner, client);
  ASSERT_EQ(send(server, "x", 1, 0), 1);
  char byte = 0;
  ASSERT_EQ(recv(client, &byte, 1, 0), 1);
  const TcpLinks links = ReadTcpLinks(outer, kInterval);
  // TCP_RTO_MAX_MS, of Linux 6.15.
  int interval_ms = 0;
  size = sizeof(interval_ms);
  const bool is_bounded = getsockopt(client, IPPROTO_TCP, 44, &interval_ms, &size) == 0;
  EXPECT_EQ(interval_ms, is_bounded ? 1000 : 0);
  ASSERT_EQ(links.size(), 1u);
  EXPECT_EQ(links.begin()->first, std::string("\x7f\0\0\x01", 4));
  EXPECT_FALSE(links.begin()->second.has_unconfirmed);
  EXPECT_EQ(links.begin()->second.is_retried_late, !is_bounded);
  EXPECT_LT(links.begin()->second.silence, std::chrono::seconds(10));
  for (const int fd : {client, server, listener, inner, outer}) close(fd);
}

TEST(TcpLinksTest, ConnectionsToOneHostAreOneLink) {
  TcpLink link;
  link.Add({.has_unconfirmed = true, .silence = std::chrono::seconds(7)});
  link.Add({.has_unanswered = true, .is_retried_late = true, .silence = std::chrono::seconds(3)});
  EXPECT_TRUE(link.has_unconfirmed);
  EXPECT_TRUE(link.has_unanswered);
  EXPECT_TRUE(link.is_retried_late);
  EXPECT_EQ(link.silence, std::chrono::seconds(3));
}

TEST(TcpLinksTest, ThisHostHasAddresses) {
  for (const NetworkAddress& address : OwnAddresses()) {
    EXPECT_TRUE(address.size() == 4 || address.size() == 16);
  }
}

}  // namespace
}  // namespace penstock::transport::ucx
