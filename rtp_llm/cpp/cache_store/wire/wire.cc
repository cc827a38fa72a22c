// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/wire/wire.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "rtp_llm/cpp/cache_store/wire/crc32c.h"
#include "rtp_llm/cpp/cache_store/wire/worker_key.h"

namespace rtp_llm {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire's order is the memory's");

struct Header {
  uint32_t magic;
  uint16_t type;
  uint16_t code;
  uint64_t id;
  uint64_t payload_bytes;
  uint32_t body_bytes;
  uint32_t checksum;  // of header and body, itself being 0
};
static_assert(sizeof(Header) == kHeaderBytes, "the wire has no gaps");

struct HelloHead {
  uint32_t version;
  uint32_t flags;
  uint32_t fingerprint_bytes;
};

struct LoadHead {
  uint32_t timeout_ms;
  uint32_t layer;
  uint16_t partition_count;
  uint16_t partition_index;
  uint32_t request_bytes;
  uint32_t num_blocks;
};

struct WireBlock {
  uint32_t plane;
  uint32_t position;
  uint64_t content;
  uint32_t rows;
  uint32_t row_bytes;
};
static_assert(sizeof(HelloHead) == 12 && sizeof(LoadHead) == 20 && sizeof(WireBlock) == 24,
              "the wire has no gaps");

template <typename T>
void Put(const T& value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// False when the rest of `bytes` is shorter than a T.
template <typename T>
bool Get(const std::string& bytes, size_t* at, T* value) {
  if (bytes.size() - *at < sizeof(T)) return false;
  std::memcpy(value, bytes.data() + *at, sizeof(T));
  *at += sizeof(T);
  return true;
}

size_t MaxBody(FrameType type) {
  switch (type) {
    case FrameType::kHello:
    case FrameType::kWelcome:
      return sizeof(HelloHead) + kMaxFingerprintBytes;
    case FrameType::kLoad:
      return sizeof(LoadHead) + kMaxRequestBytes + kMaxLoadBlocks * sizeof(WireBlock);
    case FrameType::kData:
      return kMaxDetailBytes;
    case FrameType::kCancel:
      return 0;
    case FrameType::kChallenge:
      return kNonceBytes;
    case FrameType::kProof:
      return kNonceBytes + kProofBytes;
  }
  return 0;
}

bool IsKnown(uint16_t type) {
  return type >= static_cast<uint16_t>(FrameType::kHello) &&
         type <= static_cast<uint16_t>(FrameType::kProof);
}

Header HeaderOf(const std::string& bytes) {
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

uint32_t Checksum(const std::string& bytes) {
  Header header = HeaderOf(bytes);
  header.checksum = 0;
  const uint32_t crc = Crc32c(0, &header, sizeof(header));
  return Crc32c(crc, bytes.data() + sizeof(header), bytes.size() - sizeof(header));
}

bool IsValid(const WireBlock& block) {
  const uint64_t bytes = static_cast<uint64_t>(block.rows) * block.row_bytes;
  return bytes > 0 && bytes <= kMaxBlockBytes;
}

}  // namespace

std::string Encode(const Frame& frame) {
  const Header header{kWireMagic,
                      static_cast<uint16_t>(frame.type),
                      static_cast<uint16_t>(frame.code),
                      frame.id,
                      frame.payload_bytes,
                      static_cast<uint32_t>(frame.body.size()),
                      0};
  std::string bytes;
  bytes.reserve(sizeof(header) + frame.body.size());
  Put(header, &bytes);
  bytes += frame.body;
  const uint32_t checksum = Checksum(bytes);
  std::memcpy(&bytes[offsetof(Header, checksum)], &checksum, sizeof(checksum));
  return bytes;
}

std::string EncodeHello(const Hello& hello) {
  std::string body;
  Put(HelloHead{hello.version, hello.flags, static_cast<uint32_t>(hello.fingerprint.size())},
      &body);
  return body + hello.fingerprint;
}

bool DecodeHello(const std::string& body, Hello* hello) {
  size_t at = 0;
  HelloHead head;
  if (!Get(body, &at, &head) || head.fingerprint_bytes != body.size() - at) return false;
  *hello = {head.version, head.flags, body.substr(at)};
  return true;
}

std::string EncodeLoad(const LoadMessage& message) {
  const BlockQuery& query = message.query;
  std::string body;
  body.reserve(sizeof(LoadHead) + query.request.size() + query.keys.size() * sizeof(WireBlock));
  Put(LoadHead{message.timeout_ms, query.layer, query.partition.count, query.partition.index,
               static_cast<uint32_t>(query.request.size()),
               static_cast<uint32_t>(query.keys.size())},
      &body);
  body += query.request;
  for (size_t i = 0; i < query.keys.size(); ++i) {
    const BlockKey& key = query.keys[i];
    Put(WireBlock{key.plane, key.position, key.content, query.rows[i], query.row_bytes[i]}, &body);
  }
  return body;
}

bool DecodeLoad(const std::string& body, LoadMessage* message) {
  size_t at = 0;
  LoadHead head;
  if (!Get(body, &at, &head)) return false;
  if (head.timeout_ms == 0 || head.timeout_ms > kMaxTimeoutMs) return false;
  if (head.partition_index >= head.partition_count) return false;
  if (head.request_bytes == 0 || head.request_bytes > kMaxRequestBytes) return false;
  if (head.num_blocks == 0 || head.num_blocks > kMaxLoadBlocks) return false;
  if (body.size() - at != head.request_bytes + head.num_blocks * sizeof(WireBlock)) return false;
  message->timeout_ms = head.timeout_ms;
  BlockQuery& query = message->query;
  query.layer = head.layer;
  query.partition = {head.partition_count, head.partition_index};
  query.request = body.substr(at, head.request_bytes);
  at += head.request_bytes;
  query.keys.reserve(head.num_blocks);
  query.rows.reserve(head.num_blocks);
  query.row_bytes.reserve(head.num_blocks);
  for (WireBlock block; Get(body, &at, &block);) {
    if (!IsValid(block)) return false;
    query.keys.push_back({block.plane, block.position, block.content});
    query.rows.push_back(block.rows);
    query.row_bytes.push_back(block.row_bytes);
  }
  return true;
}

uint64_t QueryBytes(const BlockQuery& query) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < query.keys.size(); ++i) {
    bytes += static_cast<uint64_t>(query.rows[i]) * query.row_bytes[i];
  }
  return bytes;
}

FrameReader::Status FrameReader::Read(int fd, Frame* frame) {
  Status status = Fill(fd);
  if (status == Status::kFrame && !in_body_) {
    if (!BeginBody()) return Status::kBad;
    status = Fill(fd);
  }
  if (status != Status::kFrame) return status;
  if (!Finish(frame)) return Status::kBad;
  bytes_.resize(kHeaderBytes);
  have_ = 0;
  in_body_ = false;
  return Status::kFrame;
}

// kFrame: all of bytes_ has come.
FrameReader::Status FrameReader::Fill(int fd) {
  while (have_ < bytes_.size()) {
    const ssize_t got = recv(fd, &bytes_[have_], bytes_.size() - have_, MSG_DONTWAIT);
    if (got > 0) {
      have_ += static_cast<size_t>(got);
    } else if (got == 0) {
      return Status::kClosed;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Status::kBlocked;
    } else if (errno != EINTR) {
      return Status::kClosed;
    }
  }
  return Status::kFrame;
}

bool FrameReader::BeginBody() {
  const Header header = HeaderOf(bytes_);
  if (header.magic != kWireMagic || !IsKnown(header.type)) return false;
  if (header.body_bytes > MaxBody(static_cast<FrameType>(header.type))) return false;
  bytes_.resize(kHeaderBytes + header.body_bytes);
  in_body_ = true;
  return true;
}

bool FrameReader::Finish(Frame* frame) const {
  const Header header = HeaderOf(bytes_);
  if (header.checksum != Checksum(bytes_)) return false;
  frame->type = static_cast<FrameType>(header.type);
  frame->code = static_cast<TransferCode>(header.code);
  frame->id = header.id;
  frame->payload_bytes = header.payload_bytes;
  frame->body = bytes_.substr(kHeaderBytes);
  return true;
}

}  // namespace rtp_llm
