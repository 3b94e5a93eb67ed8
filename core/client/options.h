#pragma once
// ClientOptions: what a client is told at its start.  Python's ClientConfig has the defaults.

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/clock.h"

namespace infinistore {

enum class TransportChoice { kAuto, kShm, kRdma, kTcp };

struct ClientOptions {
  std::string host;
  std::uint16_t port;
  std::string token;
  std::string space;  // the namespace of all keys
  std::string client_name;
  TransportChoice transport;
  bool tls;                       // over TCP
  std::string tls_ca_file;        // who may vouch for the server; "": SSL_CERT_FILE, or the usual
  bool read_only;                 // writes are refused; shared memory is mapped for reading
  std::string rdma_device;        // "": any; NAME or NAME:PORT
  std::size_t channels;           // over TCP and RDMA; shared memory takes one
  Nanos connect_timeout;          // until a connection counts as failed
  Nanos progress_timeout;         // a request without any progress fails after it
  bool verifies;                  // compares what is read with its checksum
  std::size_t batch_keys_max;     // of one request: at most kBatchKeysMax
  std::uint64_t batch_bytes_max;  // of one request, if it has more than one key
  std::size_t requests_max;       // bulk requests in flight on one channel
};

}  // namespace infinistore
