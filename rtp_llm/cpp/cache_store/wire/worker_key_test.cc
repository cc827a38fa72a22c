// SPDX-License-Identifier: Apache-2.0
// Who has the key gets blocks; who has not, or says nothing, costs little for a short time.

#include "rtp_llm/cpp/cache_store/wire/worker_key.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "rtp_llm/cpp/cache_store/transfer/transfer_fixture.h"
#include "rtp_llm/cpp/cache_store/wire/sha256.h"
#include "rtp_llm/cpp/cache_store/wire/wire.h"

namespace rtp_llm {
namespace {

using std::chrono::milliseconds;

const std::string kKey = "a key of at least sixteen bytes";

std::string Hex(const std::string& bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += digits[static_cast<unsigned char>(byte) >> 4];
    text += digits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

TransferServerOptions Options(const std::string& key) {
  TransferServerOptions options;
  options.fingerprint = "model";
  options.key = key;
  return options;
}

std::unique_ptr<TransferClient> Client(const std::string& key) {
  TransferClientOptions options;
  options.fingerprint = "model";
  options.connect_timeout = kTestTimeout;
  options.key = key;
  return std::make_unique<TransferClient>(options);
}

// A client that speaks the protocol by hand; its socket blocks by polling.
class RawClient {
 public:
  explicit RawClient(const std::string& address) {
    std::string error;
    size_t next = 0;
    socket_ = BeginConnect(address, &next, &error);
    EXPECT_TRUE(socket_) << error;
    pollfd entry{socket_.fd(), POLLOUT, 0};
    poll(&entry, 1, -1);
  }

  void Send(const std::string& bytes) const {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t taken = send(socket_.fd(), &bytes[sent], bytes.size() - sent, MSG_NOSIGNAL);
      if (taken < 0 && errno != EAGAIN) return;
      if (taken > 0) sent += static_cast<size_t>(taken);
    }
  }
  void Say(FrameType type, std::string body) const {
    Send(Encode({type, TransferCode::kNone, 0, 0, std::move(body)}));
  }
  void SayHello(uint32_t flags = kFlagKey) const {
    Say(FrameType::kHello, EncodeHello({kWireVersion, flags, "model"}));
  }

  FrameReader::Status Read(Frame* frame) {
    for (;;) {
      const FrameReader::Status status = reader_.Read(socket_.fd(), frame);
      if (status != FrameReader::Status::kBlocked) return status;
      pollfd entry{socket_.fd(), POLLIN, 0};
      poll(&entry, 1, -1);
    }
  }
  Frame Expect(FrameType type) {
    Frame frame;
    EXPECT_EQ(Read(&frame), FrameReader::Status::kFrame);
    EXPECT_EQ(frame.type, type);
    return frame;
  }
  void ExpectEnd() {
    Frame frame;
    EXPECT_EQ(Read(&frame), FrameReader::Status::kClosed);
  }
  // What a client with the key answers.
  static std::string Answer(const std::string& challenge, const std::string& nonce,
                            WorkerKey::Side side = WorkerKey::Side::kDecode) {
    return nonce + WorkerKey(kKey).Proof(side, challenge, nonce);
  }

 private:
  Socket socket_;
  FrameReader reader_;
};

void ExpectUnauthorized(RawClient* client) {
  const Frame answer = client->Expect(FrameType::kWelcome);
  EXPECT_EQ(answer.code, TransferCode::kUnauthorized);
  Hello hello;
  ASSERT_TRUE(DecodeHello(answer.body, &hello));
  EXPECT_EQ(hello.fingerprint, "");  // a stranger learns nothing of the model
  client->ExpectEnd();
}

size_t Threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST(Sha256Test, VectorsOfTheStandards) {
  EXPECT_EQ(Hex(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hex(Sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // RFC 4231, cases 1, 2 and 6.
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'),
                           "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(WorkerKeyTest, ProofsAreOfOneSideAndOneConnection) {
  const WorkerKey key(kKey);
  const std::string here = FreshNonce();
  const std::string there = FreshNonce();
  const std::string proof = key.Proof(WorkerKey::Side::kDecode, here, there);
  EXPECT_EQ(proof.size(), kProofBytes);
  EXPECT_EQ(proof, key.Proof(WorkerKey::Side::kDecode, here, there));
  EXPECT_NE(here, there);
  EXPECT_NE(proof, key.Proof(WorkerKey::Side::kPrefill, here, there));
  EXPECT_NE(proof, key.Proof(WorkerKey::Side::kDecode, there, here));
  EXPECT_NE(proof, WorkerKey(kKey + "!").Proof(WorkerKey::Side::kDecode, here, there));
  EXPECT_TRUE(SameBytes("ab", "ab"));
  EXPECT_FALSE(SameBytes("ab", "ac"));
  EXPECT_FALSE(SameBytes("ab", "abc"));
}

TEST(WorkerKeyTest, BlocksGoToWhoHasTheKey) {
  struct Case {
    std::string prefill, decode, why;
  };
  const std::vector<Case> cases = {
      {kKey, kKey, ""},
      {kKey, kKey + "!", "the worker keys of prefill and decode differ"},
      {kKey, "", "prefill has a worker key and decode has none"},
      {"", kKey, "prefill has no worker key and decode has one"},
  };
  for (const Case& each : cases) {
    const auto store = BlockStore::Make();
    const TransferServer server(store, Options(each.prefill));
    Pool source(1, 20, 1);
    const Pool before(1, 20, 3);
    Pool target(1, 20, 3);
    StoreAll(store.get(), "r", &source);
    const auto client = Client(each.decode);
    const auto load = client->StartLoad(Request(server.address(), "r", &target));
    ASSERT_TRUE(load->Wait(kTestTimeout));
    if (each.why.empty()) {
      EXPECT_EQ(load->code(), TransferCode::kNone) << load->message();
      EXPECT_TRUE(target.Took(source, before));
    } else {
      EXPECT_EQ(load->code(), TransferCode::kUnauthorized) << load->message();
      EXPECT_NE(load->message().find(each.why), std::string::npos) << load->message();
      EXPECT_EQ(target.bytes, before.bytes);
      EXPECT_GE(server.counters().unauthorized, 1);
    }
    EXPECT_EQ(server.counters().protocol_errors, 0);
  }
}

TEST(WorkerKeyTest, ARecordedAnswerIsOfNoUse) {
  const TransferServer server(BlockStore::Make(), Options(kKey));
  RawClient honest(server.address());
  honest.SayHello();
  const std::string answer =
      RawClient::Answer(honest.Expect(FrameType::kChallenge).body, FreshNonce());
  honest.Say(FrameType::kProof, answer);
  honest.Expect(FrameType::kProof);
  EXPECT_EQ(honest.Expect(FrameType::kWelcome).code, TransferCode::kNone);

  RawClient replaying(server.address());
  replaying.SayHello();
  replaying.Expect(FrameType::kChallenge);
  replaying.Say(FrameType::kProof, answer);
  ExpectUnauthorized(&replaying);

  // The other side's proof, as a client could have it computed elsewhere, is none either.
  RawClient reflecting(server.address());
  reflecting.SayHello();
  const std::string challenge = reflecting.Expect(FrameType::kChallenge).body;
  reflecting.Say(FrameType::kProof,
                 RawClient::Answer(challenge, FreshNonce(), WorkerKey::Side::kPrefill));
  ExpectUnauthorized(&reflecting);
}

TEST(WorkerKeyTest, NothingIsAnsweredBeforeTheProof) {
  const auto store = BlockStore::Make();
  const TransferServer server(store, Options(kKey));
  RawClient keyless(server.address());
  keyless.SayHello(0);
  ExpectUnauthorized(&keyless);
  RawClient hasty(server.address());
  hasty.SayHello();
  hasty.Expect(FrameType::kChallenge);
  hasty.Say(FrameType::kCancel, "");
  hasty.ExpectEnd();
  RawClient brief(server.address());
  brief.SayHello();
  brief.Expect(FrameType::kChallenge);
  brief.Say(FrameType::kProof, "short");
  brief.ExpectEnd();
  EXPECT_EQ(server.counters().protocol_errors, 2);
  EXPECT_EQ(server.counters().loads, 0);
}

// A server that cannot prove its key gets no request.
TEST(WorkerKeyTest, ADecodeWorkerIsNotFooledEither) {
  const Socket listener = Listen("127.0.0.1:0");
  const auto client = Client(kKey);
  Pool target(1, 2, 3);
  const auto load = client->StartLoad(Request(LocalAddress(listener.fd()), "r", &target));
  Socket peer;
  Until([&] { return static_cast<bool>(peer = Accept(listener.fd())); });
  FrameReader reader;
  Frame frame;
  Until([&] { return reader.Read(peer.fd(), &frame) == FrameReader::Status::kFrame; });
  const std::string reply =
      Encode({FrameType::kChallenge, TransferCode::kNone, 0, 0, FreshNonce()}) +
      Encode({FrameType::kProof, TransferCode::kNone, 0, 0, std::string(kProofBytes, 'x')}) +
      Encode({FrameType::kWelcome, TransferCode::kNone, 0, 0, EncodeHello({1, 0, "model"})});
  ASSERT_EQ(send(peer.fd(), reply.data(), reply.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(reply.size()));
  ASSERT_TRUE(load->Wait(kTestTimeout));
  EXPECT_EQ(load->code(), TransferCode::kUnauthorized) << load->message();
}

TEST(WorkerKeyTest, HalfAHandshakeIsEndedInTime) {
  TransferServerOptions options = Options(kKey);
  options.handshake_timeout = milliseconds(50);
  const TransferServer server(BlockStore::Make(), options);
  const RawClient silent(server.address());
  const RawClient partial(server.address());
  partial.Send(std::string("RTPK"));
  RawClient unproven(server.address());
  unproven.SayHello();
  Until([&] { return server.counters().accepted == 3 && server.counters().connections == 0; });
  EXPECT_EQ(server.counters().protocol_errors, 3);
}

TEST(WorkerKeyTest, FiveHundredSilentClientsKeepNobodyOut) {
  TransferServerOptions options = Options(kKey);
  options.max_connections = 64;
  options.handshake_grace = milliseconds(1);
  options.handshake_timeout = kTestTimeout;  // so that only newcomers end them
  const auto store = BlockStore::Make();
  const TransferServer server(store, options);
  Pool source(1, 20, 1);
  StoreAll(store.get(), "r", &source);
  const size_t threads = Threads();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 500; ++i) clients.push_back(std::make_unique<RawClient>(server.address()));
  Until([&] { return server.counters().accepted + server.counters().refused == 500; });
  EXPECT_EQ(Threads(), threads);
  Until([&] { return server.counters().connections <= 64; });
  std::this_thread::sleep_for(milliseconds(5));
  const auto client = Client(kKey);
  Pool target(1, 20, 3);
  const Pool before(1, 20, 3);
  const auto load = client->StartLoad(Request(server.address(), "r", &target));
  ASSERT_TRUE(load->Wait(kTestTimeout));
  EXPECT_EQ(load->code(), TransferCode::kNone) << load->message();
  EXPECT_TRUE(target.Took(source, before));
  EXPECT_GT(server.counters().evicted, 0);
}

// Clients that have just come have their time: it is the newcomer who is refused.
TEST(WorkerKeyTest, AFullHouseRefusesNewcomers) {
  TransferServerOptions options = Options(kKey);
  options.max_connections = 2;
  options.handshake_grace = kTestTimeout;
  const TransferServer server(BlockStore::Make(), options);
  const RawClient first(server.address());
  const RawClient second(server.address());
  Until([&] { return server.counters().connections == 2; });
  RawClient third(server.address());
  third.ExpectEnd();
  EXPECT_EQ(server.counters().refused, 1);
  EXPECT_EQ(server.counters().evicted, 0);
}

}  // namespace
}  // namespace rtp_llm
