#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl3.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <string>
#include <utility>

#include <kj/debug.h>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/forwarding_stream_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/peer_user_internal.h"
#include "actors/cluster/secure_channel_internal.h"
#include "actors/cluster/socket_address.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors::control {
namespace {

constexpr char kAuthorityName[] = "penstock job authority";
constexpr char kCoordinatorName[] = "coordinator.penstock.invalid";
constexpr char kNodeName[] = "node.penstock.invalid";
// What the authority's key is derived for; a change of it is a change of the protocol.
constexpr std::string_view kDerivation = "penstock control plane authority 1";
// TLS 1.2 has no cipher in common with these certificates, so TLS 1.3 is all that is left: kj's
// options go only as far as TLS 1.2.
constexpr char kNoOldCiphers[] = "ECDHE-RSA-AES256-GCM-SHA384";

template <typename T, void (*Free)(T*)>
struct Deleter {
  void operator()(T* object) const { Free(object); }
};
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY, EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509, X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION, X509_EXTENSION_free>>;
using Bio = std::unique_ptr<BIO, Deleter<BIO, BIO_free_all>>;

absl::Status Failure(std::string_view what) {
  return absl::InternalError(StrCat("TLS: ", what, " failed"));
}

absl::StatusOr<Key> AuthorityKey(std::string_view job_key) {
  unsigned char seed[EVP_MAX_MD_SIZE];
  unsigned int num_bytes = 0;
  if (HMAC(EVP_sha256(), job_key.data(), static_cast<int>(job_key.size()),
           reinterpret_cast<const unsigned char*>(kDerivation.data()), kDerivation.size(), seed,
           &num_bytes) == nullptr) {
    return Failure("deriving the authority's key");
  }
  Key key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed, num_bytes));
  OPENSSL_cleanse(seed, sizeof(seed));
  if (key == nullptr) return Failure("making the authority's key");
  return key;
}

absl::StatusOr<Key> NewKey() {
  Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  if (key == nullptr) return Failure("making a key");
  return key;
}

bool AddExtension(X509* certificate, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool SetName(X509_NAME* name, const char* text) {
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                    reinterpret_cast<const unsigned char*>(text), -1, -1, 0) == 1;
}

// Signed by the authority; one whose subject is the authority may sign others.
absl::StatusOr<Certificate> Sign(const char* subject, EVP_PKEY* subject_key, EVP_PKEY* authority,
                                 const Validity& validity) {
  Certificate certificate(X509_new());
  uint64_t serial = 0;
  if (certificate == nullptr ||
      RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) != 1) {
    return Failure("making a certificate");
  }
  X509* const x509 = certificate.get();
  const bool is_authority = subject == kAuthorityName;
  const bool is_made =
      X509_set_version(x509, X509_VERSION_3) == 1 &&
      ASN1_INTEGER_set_uint64(X509_get_serialNumber(x509), serial >> 1) == 1 &&
      X509_gmtime_adj(X509_getm_notBefore(x509), absl::ToInt64Seconds(validity.from)) != nullptr &&
      X509_gmtime_adj(X509_getm_notAfter(x509), absl::ToInt64Seconds(validity.to)) != nullptr &&
      SetName(X509_get_subject_name(x509), subject) &&
      SetName(X509_get_issuer_name(x509), kAuthorityName) &&
      X509_set_pubkey(x509, subject_key) == 1 &&
      (is_authority ? AddExtension(x509, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                          AddExtension(x509, NID_key_usage, "critical,keyCertSign")
                    : AddExtension(x509, NID_basic_constraints, "critical,CA:FALSE") &&
                          AddExtension(x509, NID_key_usage, "critical,digitalSignature") &&
                          AddExtension(x509, NID_ext_key_usage,
                                       subject == kCoordinatorName ? "serverAuth" : "clientAuth") &&
                          AddExtension(x509, NID_subject_alt_name, StrCat("DNS:", subject))) &&
      X509_sign(x509, authority, nullptr) > 0;
  if (!is_made) return Failure("signing a certificate");
  return certificate;
}

// The PEM text that `write` writes.
template <typename Write>
absl::StatusOr<std::string> ToPem(const Write& write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return Failure("writing a certificate");
  char* bytes = nullptr;
  const long num_bytes = BIO_get_mem_data(bio.get(), &bytes);
  return std::string(bytes, static_cast<size_t>(num_bytes));
}

absl::StatusOr<std::string> CertificatePem(const absl::StatusOr<Certificate>& certificate) {
  RETURN_IF_ERROR(certificate.status());
  return ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate->get()); });
}

// Errors of a TLS stream mean that its connection is over: OpenSSL has types of its own for an end
// without a farewell, which is how the processes of a job that dies end theirs.
kj::Exception AsDisconnected(const kj::Exception& exception) {
  return {kj::Exception::Type::DISCONNECTED, exception.getFile(), exception.getLine(),
          kj::heapString(exception.getDescription())};
}

bool HasTls(std::string_view address, Encryption encryption) {
  return encryption == Encryption::kTls && !IsUnixAddress(address);
}

// The stream that TLS reads from. Notes that the other side has closed the connection: OpenSSL's
// error for that is of the same type as its others, and of its reason only a text is left in kj's
// exception.
class TransportStream final : public ForwardingStream {
 public:
  TransportStream(kj::Own<kj::AsyncIoStream> stream, std::shared_ptr<bool> has_ended)
      : ForwardingStream(kj::mv(stream)), has_ended_(std::move(has_ended)) {}

  kj::Promise<size_t> tryRead(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return ForwardingStream::tryRead(buffer, min_bytes, max_bytes)
        .then([has_ended = has_ended_, min_bytes](size_t num_bytes) {
          if (num_bytes < min_bytes) *has_ended = true;
          return num_bytes;
        });
  }

 private:
  const std::shared_ptr<bool> has_ended_;
};

class TlsStream final : public kj::AsyncIoStream {
 public:
  explicit TlsStream(kj::Own<kj::AsyncIoStream> stream) : stream_(kj::mv(stream)) {}

  kj::Promise<size_t> read(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return Guard(stream_->read(buffer, min_bytes, max_bytes));
  }
  kj::Promise<size_t> tryRead(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return Guard(stream_->tryRead(buffer, min_bytes, max_bytes));
  }
  kj::Promise<void> write(const void* buffer, size_t size) override {
    return Guard(stream_->write(buffer, size));
  }
  // In one record where they fit, so that the other side wakes once, and decrypts once.
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    size_t size = 0;
    for (const auto& piece : pieces) size += piece.size();
    if (pieces.size() < 2 || size > SSL3_RT_MAX_PLAIN_LENGTH) {
      return Guard(stream_->write(pieces));
    }
    auto joined = kj::heapArray<kj::byte>(size);
    kj::byte* end = joined.begin();
    for (const auto& piece : pieces) end = std::copy(piece.begin(), piece.end(), end);
    auto written = Guard(stream_->write(joined.begin(), size));
    return written.attach(kj::mv(joined));
  }
  kj::Promise<void> whenWriteDisconnected() override { return stream_->whenWriteDisconnected(); }
  void shutdownWrite() override { stream_->shutdownWrite(); }
  void abortRead() override { stream_->abortRead(); }

 private:
  template <typename T>
  static kj::Promise<T> Guard(kj::Promise<T> promise) {
    return promise.catch_(
        [](const kj::Exception& exception) -> kj::Promise<T> { return AsDisconnected(exception); });
  }

  kj::Own<kj::AsyncIoStream> stream_;
};

}  // namespace

// Lost packets are sent again after 0.2, 0.4, ... 1.2 s and later, not after 0.2, 0.6, 1.4 and 3.0
// s, as otherwise a link that is down for 1.5 s would look as if it were down for 3. Small messages
// do not wait for others.
void SetTcpOptions(kj::AsyncIoStream& stream) {
  if (IsUnixSocket(stream)) return;
  const int on = 1;
  for (const int option : {TCP_THIN_LINEAR_TIMEOUTS, TCP_NODELAY}) {
    (void)kj::runCatchingExceptions(
        [&] { stream.setsockopt(IPPROTO_TCP, option, &on, sizeof(on)); });
  }
}

absl::StatusOr<std::unique_ptr<SecureChannel>> SecureChannel::Create(std::string_view key,
                                                                     ChannelSide side,
                                                                     const Validity& validity) {
  if (key.size() != kJobKeyBytes) return absl::InvalidArgumentError("a key of the wrong length");
  const char* const name = side == ChannelSide::kCoordinator ? kCoordinatorName : kNodeName;
  ASSIGN_OR_RETURN(const Key authority, AuthorityKey(key));
  ASSIGN_OR_RETURN(const Key own, NewKey());
  ASSIGN_OR_RETURN(const std::string trusted_pem,
                   CertificatePem(Sign(kAuthorityName, authority.get(), authority.get(), {})));
  ASSIGN_OR_RETURN(const std::string own_pem,
                   CertificatePem(Sign(name, own.get(), authority.get(), validity)));
  ASSIGN_OR_RETURN(const std::string key_pem, ToPem([&](BIO* bio) {
                     return PEM_write_bio_PrivateKey(bio, own.get(), nullptr, nullptr, 0, nullptr,
                                                     nullptr);
                   }));
  std::unique_ptr<SecureChannel> channel;
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                 const kj::TlsCertificate trusted(kj::StringPtr(trusted_pem.c_str()));
                 const kj::TlsKeypair pair{kj::TlsPrivateKey(kj::StringPtr(key_pem.c_str())),
                                           kj::TlsCertificate(kj::StringPtr(own_pem.c_str()))};
                 kj::TlsContext::Options options;
                 options.useSystemTrustStore = false;
                 options.verifyClients = true;
                 options.trustedCertificates = kj::arrayPtr(&trusted, 1);
                 options.defaultKeypair = pair;
                 options.cipherList = kNoOldCiphers;
                 channel.reset(new SecureChannel(side, kj::mv(options)));
               })) {
    return absl::InternalError(StrCat("TLS: ", exception->getDescription().cStr()));
  }
  return channel;
}

kj::Promise<kj::Own<kj::AsyncIoStream>> SecureChannel::Secure(kj::Own<kj::AsyncIoStream> stream) {
  SetTcpOptions(*stream);
  using Stream = kj::Own<kj::AsyncIoStream>;
  const auto has_ended = std::make_shared<bool>(false);
  Stream transport = kj::heap<TransportStream>(kj::mv(stream), has_ended);
  auto secured = side_ == ChannelSide::kCoordinator
                     ? context_.wrapServer(kj::mv(transport))
                     : context_.wrapClient(kj::mv(transport), kCoordinatorName);
  return secured.then(
      [](Stream&& wrapped) -> kj::Promise<Stream> {
        return Stream(kj::heap<TlsStream>(kj::mv(wrapped)));
      },
      [has_ended](kj::Exception&& exception) -> kj::Promise<Stream> {
        if (*has_ended) return AsDisconnected(exception);
        return kj::mv(exception);
      });
}

absl::StatusOr<std::shared_ptr<SecureChannel>> NodeChannel(std::string_view address,
                                                           std::string_view key,
                                                           Encryption encryption) {
  if (!HasTls(address, encryption)) return std::shared_ptr<SecureChannel>();
  ASSIGN_OR_RETURN(std::unique_ptr<SecureChannel> channel,
                   SecureChannel::Create(key, ChannelSide::kNode));
  return std::shared_ptr<SecureChannel>(std::move(channel));
}

kj::Promise<absl::StatusOr<kj::Own<kj::AsyncIoStream>>> Greet(
    kj::Own<kj::AsyncIoStream> stream, std::string_view address, std::string_view key,
    std::shared_ptr<SecureChannel> channel, Encryption encryption) {
  using Stream = kj::Own<kj::AsyncIoStream>;
  using Result = absl::StatusOr<Stream>;
  kj::Promise<Stream> secured = nullptr;
  // The hello has half of the key in it.
  if (IsUnixSocket(*stream) && !IsOfThisUser(*stream)) {
    return Result(absl::UnauthenticatedError(""));
  }
  const bool is_secure = HasTls(address, encryption);
  if (!is_secure) {
    SetTcpOptions(*stream);
    secured = kj::mv(stream);
  } else {
    if (channel == nullptr) {
      absl::StatusOr<std::shared_ptr<SecureChannel>> made = NodeChannel(address, key);
      if (!made.ok()) return Result(made.status());
      channel = *std::move(made);
    }
    secured = channel->Secure(kj::mv(stream));
    secured = secured.attach(std::move(channel));
  }
  return secured
      .then([key = std::string(key)](Stream&& to) {
        kj::AsyncIoStream& said_to = *to;
        return SayHello(said_to, key).then([to = kj::mv(to)](absl::Status&& greeted) mutable {
          return greeted.ok() ? Result(kj::mv(to)) : Result(std::move(greeted));
        });
      })
      .catch_([is_secure](const kj::Exception& exception) {
        const bool is_over = exception.getType() == kj::Exception::Type::DISCONNECTED;
        return is_secure && is_over ? Result(absl::UnavailableError(""))
                                    : Result(absl::UnauthenticatedError(""));
      });
}

}  // namespace penstock::actors::control
