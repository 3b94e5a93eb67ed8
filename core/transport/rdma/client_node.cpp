#include "core/transport/rdma/client_node.h"

namespace infinistore {

Result<const RdmaNode*> RdmaClient::node() {
  const MutexLock lock(mutex_);
  if (!node_) {
    auto opened = RdmaNode::open();
    if (!opened) return opened.error();
    node_ = std::move(*opened);
  }
  return static_cast<const RdmaNode*>(node_.get());
}

Result<QueuePair> RdmaClient::attach(const DialledLine& line, std::uint64_t request_id,
                                     DialDeadline deadline) {
  const auto opened = node();
  if (!opened) return opened.error();
  const RdmaNode& node = *opened.value();
  const auto port = choose_port(
      node.ports(),
      {.device = wish_, .local = local_gid(line.socket), .link_layer = {}, .is_ipv4 = {}});
  if (!port) return port.error();
  auto pair = QueuePair::create(node.devices()[port.value().device_index], port.value(), 0);
  if (!pair) return pair;
  auto answer =
      exchange(line, Opcode::kAttach, request_id, encode(Endpoints{pair->endpoint()}), deadline);
  if (!answer) return answer.error();
  if (answer->opcode == Opcode::kError) {
    const auto refusal = decode_error(answer->body);
    if (!refusal) return Error{Code::kProtocol, "the server sent a malformed ERROR"};
    return Error{Code::kSetup, "the server refuses RDMA: " + std::string(refusal->message)};
  }
  const auto peer = decode_endpoints(answer->body);
  if (answer->opcode != Opcode::kAttached || !peer) {
    return Error{Code::kProtocol, "the server answered ATTACH with something else"};
  }
  const auto error = pair->connect(peer->front());
  if (error.code != Code::kOk) return error;
  return pair;
}

}  // namespace infinistore
