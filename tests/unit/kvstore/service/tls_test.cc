#include "kvstore/service/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "echo_service.h"
#include "kvstore/service/grpc_server.h"
#include "tests/support/await.h"
#include "tests/support/gate.h"

namespace kvmesh {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Certificates made with the openssl program, in a folder that goes away with this.
class Certificates {
 public:
  Certificates() {
    char pattern[] = "/tmp/kvmesh_tlsXXXXXX";
    folder_ = mkdtemp(pattern);
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  void Authority(const std::string& name) const { Make(name, "-subj '/CN=" + name + "'"); }

  // `subject`: as openssl writes it, e.g. "/CN=acme". `alternative`: a SAN, e.g. "IP:127.0.0.1".
  void Issue(const std::string& name, const std::string& authority, const std::string& subject,
             const std::string& alternative) const {
    Make(name, "-CA " + Path(authority + ".pem") + " -CAkey " + Path(authority + ".key") + " -subj '" + subject +
                   "' -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=" + alternative);
  }

  TlsOptions Options(const std::string& name, const std::string& authority) const {
    TlsOptions options;
    options.cert_file = Path(name + ".pem");
    options.key_file = Path(name + ".key");
    options.ca_file = Path(authority + ".pem");
    options.reload_interval = absl::Seconds(1);
    return options;
  }

 private:
  void Make(const std::string& name, const std::string& rest) const {
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout " + Path(name + ".key") +
        " -out " + Path(name + ".pem") + " " + rest + " 2>" + Path("openssl.log");
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }

  std::string folder_;
};

class TlsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    certificates_ = new Certificates();
    certificates_->Authority("ca");
    certificates_->Authority("other_ca");
    certificates_->Issue("server", "ca", "/CN=worker-a", "IP:127.0.0.1");
    certificates_->Issue("elsewhere", "ca", "/CN=worker-b", "IP:10.1.2.3,DNS:worker-b");
    certificates_->Issue("acme", "ca", "/O=Acme Inc/CN=acme", "DNS:acme.example");
    certificates_->Issue("nameless", "ca", "/O=Acme Inc", "DNS:acme.example");
    certificates_->Issue("stranger", "other_ca", "/CN=acme", "IP:127.0.0.1");
  }
  static void TearDownTestSuite() {
    delete certificates_;
    certificates_ = nullptr;
  }

  void StartServer(const TlsOptions& options) {
    auto credentials = MakeServerCredentials(options);
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    auto server = GrpcServer::Start({"127.0.0.1:0", *credentials, {&service_}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // The tenant that the server saw.
  absl::StatusOr<std::string> Call(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                   std::chrono::milliseconds timeout = 20s) {
    const auto channel = MakeChannel(absl::StrCat("127.0.0.1:", server_->port()), credentials);
    std::string tenant;
    KVMESH_RETURN_IF_ERROR(CallEcho(*channel, "", tenant, timeout));
    return tenant;
  }
  absl::StatusOr<std::string> Call(const TlsOptions& options, std::chrono::milliseconds timeout = 20s) {
    auto credentials = MakeChannelCredentials(options);
    if (!credentials.ok()) return credentials.status();
    return Call(*credentials, timeout);
  }

  static Certificates* certificates_;
  EchoService service_{[](grpc::ServerContext& context, const std::string&, std::string& out) {
    absl::StatusOr<std::string> tenant = PeerTenant(context);
    if (!tenant.ok()) return tenant.status();
    out = *tenant;
    return absl::OkStatus();
  }};
  std::unique_ptr<GrpcServer> server_;
};

Certificates* TlsTest::certificates_ = nullptr;

TEST_F(TlsTest, CommonNameOfTheClientIsTheTenant) {
  StartServer(certificates_->Options("server", "ca"));
  const absl::StatusOr<std::string> tenant = Call(certificates_->Options("acme", "ca"));
  ASSERT_TRUE(tenant.ok()) << tenant.status();
  EXPECT_EQ(*tenant, "acme");
}

TEST_F(TlsTest, InsecureCallersHaveNoTenant) {
  TlsOptions insecure;
  insecure.insecure = true;
  StartServer(insecure);
  const absl::StatusOr<std::string> tenant = Call(insecure);
  ASSERT_TRUE(tenant.ok()) << tenant.status();
  EXPECT_EQ(*tenant, "");
}

TEST_F(TlsTest, ClientWithoutACertificateIsRejected) {
  StartServer(certificates_->Options("server", "ca"));
  grpc::SslCredentialsOptions no_certificate;
  std::ifstream ca(certificates_->Path("ca.pem"));
  no_certificate.pem_root_certs.assign(std::istreambuf_iterator<char>(ca), {});
  EXPECT_EQ(Call(grpc::SslCredentials(no_certificate)).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(TlsTest, PlainTextClientIsRejected) {
  StartServer(certificates_->Options("server", "ca"));
  TlsOptions insecure;
  insecure.insecure = true;
  EXPECT_EQ(Call(insecure).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(TlsTest, ClientOfAnotherAuthorityIsRejected) {
  StartServer(certificates_->Options("server", "ca"));
  EXPECT_EQ(Call(certificates_->Options("stranger", "ca")).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(TlsTest, ServerOfAnotherAuthorityIsRejected) {
  StartServer(certificates_->Options("stranger", "ca"));
  EXPECT_EQ(Call(certificates_->Options("acme", "ca")).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(TlsTest, ServerOfAnotherHostIsRejected) {
  StartServer(certificates_->Options("elsewhere", "ca"));
  EXPECT_EQ(Call(certificates_->Options("acme", "ca")).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(TlsTest, CertificateWithoutACommonNameIsUnauthenticated) {
  StartServer(certificates_->Options("server", "ca"));
  EXPECT_EQ(Call(certificates_->Options("nameless", "ca")).status().code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(TlsTest, RenewedFilesAreReadWithoutARestart) {
  TlsOptions options = certificates_->Options("server", "ca");
  options.ca_file = certificates_->Path("trusted.pem");
  std::filesystem::copy_file(certificates_->Path("ca.pem"), options.ca_file);
  StartServer(options);
  TlsOptions client = certificates_->Options("stranger", "ca");
  ASSERT_EQ(Call(client).status().code(), absl::StatusCode::kUnavailable);

  std::filesystem::copy_file(certificates_->Path("other_ca.pem"), certificates_->Path("next.pem"));
  std::filesystem::rename(certificates_->Path("next.pem"), options.ca_file);
  absl::Status status;
  const auto accepted = [&] { return (status = Call(client, 5s).status()).ok(); };
  EXPECT_TRUE(Await(kTestPatience, accepted)) << status;
}

TEST(TlsOptionsTest, AllThreeFilesOrInsecureAlone) {
  TlsOptions options;
  const auto expect_invalid = [&](const char* flag) {
    const absl::Status status = ValidateTls(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(flag));
    EXPECT_FALSE(MakeServerCredentials(options).ok());
    EXPECT_FALSE(MakeChannelCredentials(options).ok());
  };
  expect_invalid("--tls-cert");
  options.cert_file = "c";
  expect_invalid("--tls-key");
  options.key_file = "k";
  expect_invalid("--tls-ca");
  options.ca_file = "a";
  EXPECT_TRUE(ValidateTls(options).ok());
  options.insecure = true;
  expect_invalid("--insecure");
  options = TlsOptions();
  options.insecure = true;
  EXPECT_TRUE(ValidateTls(options).ok());
}

TEST_F(TlsTest, FaultyFilesAreNamedAtStart) {
  const auto expect = [](const TlsOptions& options, absl::StatusCode code, const std::string& part) {
    for (const absl::Status& status :
         {MakeServerCredentials(options).status(), MakeChannelCredentials(options).status()}) {
      EXPECT_EQ(status.code(), code) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  };
  TlsOptions options = certificates_->Options("server", "ca");
  options.cert_file = certificates_->Path("absent.pem");
  expect(options, absl::StatusCode::kNotFound, "--tls-cert " + options.cert_file);
  options.cert_file = certificates_->Path("server.key");
  expect(options, absl::StatusCode::kInvalidArgument, "--tls-cert");
  options = certificates_->Options("server", "ca");
  options.key_file = certificates_->Path("server.pem");
  expect(options, absl::StatusCode::kInvalidArgument, "--tls-key");
  options.key_file = certificates_->Path("acme.key");
  expect(options, absl::StatusCode::kInvalidArgument, "not the key of the certificate");
  options = certificates_->Options("server", "ca");
  options.ca_file = "/dev/null";
  expect(options, absl::StatusCode::kInvalidArgument, "--tls-ca");
}

TEST(TlsFlagsTest, AreBoundToTheOptions) {
  CLI::App app;
  TlsOptions options;
  AddTlsFlags(app, options);
  const char* arguments[] = {"p", "--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a", "--insecure"};
  app.parse(8, arguments);
  EXPECT_EQ(options.cert_file, "c");
  EXPECT_EQ(options.key_file, "k");
  EXPECT_EQ(options.ca_file, "a");
  EXPECT_TRUE(options.insecure);
}

}  // namespace
}  // namespace kvmesh
