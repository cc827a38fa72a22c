// SPDX-License-Identifier: Apache-2.0
// How a client's connection begins: both sides' fingerprints, and their keys if they have one.

#include <string>
#include <utility>

#include "rtp_llm/cpp/cache_store/transfer/client_connection.h"

namespace rtp_llm {
namespace {

std::string Describe(const Hello& hello) {
  return "version " + std::to_string(hello.version) + " and \"" + hello.fingerprint + "\"";
}

}  // namespace

bool ClientConnection::OnHandshake(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kChallenge:
      return OnChallenge(frame);
    case FrameType::kProof:
      return OnProof(frame);
    case FrameType::kWelcome:
      return OnWelcome(frame);
    default:
      return false;
  }
}

bool ClientConnection::OnChallenge(const Frame& frame) {
  const bool expected = shared_->key && expected_proof_.empty();
  if (!expected || frame.body.size() != kNonceBytes) return false;
  const std::string ours = FreshNonce();
  expected_proof_ = shared_->key.Proof(WorkerKey::Side::kPrefill, frame.body, ours);
  Outgoing item;
  item.text = Encode({FrameType::kProof, TransferCode::kNone, 0, 0,
                      ours + shared_->key.Proof(WorkerKey::Side::kDecode, frame.body, ours)});
  queue_.Push(std::move(item));
  return true;
}

bool ClientConnection::OnProof(const Frame& frame) {
  if (expected_proof_.empty() || !SameBytes(frame.body, expected_proof_)) {
    FailUnauthorized(true);
    return true;
  }
  proven_ = true;
  return true;
}

bool ClientConnection::OnWelcome(const Frame& frame) {
  Hello peer;
  if (!DecodeHello(frame.body, &peer)) return false;
  if (frame.code == TransferCode::kUnauthorized || proven_ != static_cast<bool>(shared_->key)) {
    FailUnauthorized((peer.flags & kFlagKey) != 0);
    return true;
  }
  if (frame.code != TransferCode::kNone || peer.version != kWireVersion ||
      peer.fingerprint != shared_->hello.fingerprint) {
    Fail(TransferCode::kMismatch,
         "prefill has " + Describe(peer) + ", decode has " + Describe(shared_->hello));
    return true;
  }
  reactor_->CancelTimer(connect_timer_);
  state_ = State::kReady;
  ++shared_->connections;
  ++shared_->connects;
  Ask();
  return true;
}

void ClientConnection::FailUnauthorized(bool peer_has_key) {
  const char* why = "prefill has no worker key and decode has one";
  if (peer_has_key) {
    why = shared_->key ? "the worker keys of prefill and decode differ"
                       : "prefill has a worker key and decode has none";
  }
  Fail(TransferCode::kUnauthorized, std::string(why) + " (--worker-key-file)");
}

}  // namespace rtp_llm
