#pragma once
// Verbs: the part of libibverbs that is used here, loaded when it is first asked for.
//
// Nothing of RDMA is needed to build or to start: the library comes with the machine's rdma-core,
// whose binary interface these declarations follow (verbs_test.cpp compares them with its header).

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/base/result.h"
#include "core/wire/exposure.h"

namespace infinistore {

struct IbvDevice;

struct IbvPd {
  struct IbvContext* context;
  std::uint32_t handle;
};

struct IbvMr {
  IbvContext* context;
  IbvPd* pd;
  void* address;
  std::size_t bytes;
  std::uint32_t handle;
  std::uint32_t local_key;
  std::uint32_t remote_key;
};

struct IbvChannel {
  IbvContext* context;
  int fd;
  int references;
};

struct IbvCq {  // its beginning; made by the library only
  IbvContext* context;
  IbvChannel* channel;
};

struct IbvQp {  // likewise
  IbvContext* context;
  void* owner;
  IbvPd* pd;
  IbvCq* send_cq;
  IbvCq* receive_cq;
  void* shared_receive_queue;
  std::uint32_t handle;
  std::uint32_t number;
};

struct IbvSge {
  std::uint64_t address;
  std::uint32_t bytes;
  std::uint32_t local_key;
};

inline constexpr int kIbvRdmaWrite = 0;
inline constexpr int kIbvRdmaRead = 4;
inline constexpr unsigned kIbvSignaled = 1u << 1;

struct IbvSendWr {
  std::uint64_t id;
  IbvSendWr* next;
  IbvSge* pieces;
  int piece_count;
  int opcode;
  unsigned flags;
  std::uint32_t immediate;
  std::uint64_t remote_address;
  std::uint32_t remote_key;
  std::uint64_t others[9];  // of other opcodes
};

struct IbvWc {
  std::uint64_t id;
  int status;
  int opcode;
  std::uint32_t vendor_error;
  std::uint32_t bytes;
  std::uint32_t immediate;
  std::uint32_t qp_number;
  std::uint32_t source_qp;
  unsigned flags;
  std::uint16_t pkey_index;
  std::uint16_t source_lid;
  std::uint8_t service_level;
  std::uint8_t path_bits;
};

struct IbvContext {
  IbvDevice* device;
  struct {
    void* others_before[11];
    int (*poll_cq)(IbvCq* cq, int count, IbvWc* completions);
    int (*request_notify)(IbvCq* cq, int solicited_only);
    void* others_between[12];
    int (*post_send)(IbvQp* qp, IbvSendWr* first, IbvSendWr** bad);
    void* others_after[6];
  } calls;
  int command_fd;
  int async_fd;
};

struct IbvDeviceAttributes {
  char firmware[64];
  std::uint64_t node_guid;
  std::uint64_t system_guid;
  std::uint64_t mr_bytes_max;
  std::uint64_t page_sizes;
  std::uint32_t ids[3];
  int qp_max;
  int qp_wr_max;
  unsigned capabilities;
  int sge_max;
  int read_sge_max;
  int cq_max;
  int cqe_max;
  int mr_max;
  int pd_max;
  int qp_reads_max;  // that a responder serves at once
  int ee_reads_max;
  int reads_max;
  int qp_init_reads_max;  // that an initiator has on their way at once
  int others[18];
};

struct IbvPortAttributes {
  int state;
  int mtu_max;
  int mtu_active;
  int gid_count;
  std::uint32_t capabilities;
  std::uint32_t message_bytes_max;
  std::uint32_t counters[2];
  std::uint16_t pkey_count;
  std::uint16_t lid;
  std::uint16_t subnet_manager_lid;
  std::uint8_t lid_mask;
  std::uint8_t lanes;
  std::uint8_t service_level;
  std::uint8_t timeout;
  std::uint8_t init_type;
  std::uint8_t width;
  std::uint8_t speed;
  std::uint8_t physical_state;
  std::uint8_t link_layer;
  std::uint8_t flags;
  std::uint16_t capabilities2;
  std::uint64_t reserved[4];  // later versions write more
};

inline constexpr int kIbvPortActive = 4;
inline constexpr std::uint8_t kIbvLinkInfiniBand = 1;
inline constexpr std::uint8_t kIbvLinkEthernet = 2;
inline constexpr std::uint32_t kIbvGidRoceV2 = 2;

struct IbvGidEntry {
  Gid gid;
  std::uint32_t index;
  std::uint32_t port;
  std::uint32_t type;
  std::uint32_t interface;
};

struct IbvQpCapacities {
  std::uint32_t send_wr_max;
  std::uint32_t receive_wr_max;
  std::uint32_t send_sge_max;
  std::uint32_t receive_sge_max;
  std::uint32_t inline_bytes_max;
};

inline constexpr int kIbvReliable = 2;

struct IbvQpInit {
  void* owner;
  IbvCq* send_cq;
  IbvCq* receive_cq;
  void* shared_receive_queue;
  IbvQpCapacities capacities;
  int type;
  int signals_all;
};

struct IbvAddress {
  alignas(8) Gid gid;
  std::uint32_t flow_label;
  std::uint8_t own_gid_index;
  std::uint8_t hop_limit;
  std::uint8_t traffic_class;
  std::uint16_t lid;
  std::uint8_t service_level;
  std::uint8_t path_bits;
  std::uint8_t static_rate;
  std::uint8_t is_global;
  std::uint8_t port;
};

enum IbvQpState : int {
  kIbvQpInit = 1,
  kIbvQpReadyToReceive = 2,
  kIbvQpReadyToSend = 3,
  kIbvQpError = 6,
};

struct IbvQpAttributes {
  int state;
  int current_state;
  int mtu;
  int migration_state;
  std::uint32_t qkey;
  std::uint32_t receive_psn;
  std::uint32_t send_psn;
  std::uint32_t peer_qp;
  unsigned access;
  IbvQpCapacities capacities;
  IbvAddress address;
  IbvAddress alternative;
  std::uint16_t pkey_index;
  std::uint16_t alternative_pkey_index;
  std::uint8_t notifies_drained;
  std::uint8_t is_draining;
  std::uint8_t reads_max;       // on their way from here
  std::uint8_t peer_reads_max;  // served here
  std::uint8_t receiver_not_ready_timer;
  std::uint8_t port;
  std::uint8_t timeout;
  std::uint8_t retries;
  std::uint8_t receiver_not_ready_retries;
  std::uint8_t alternative_port;
  std::uint8_t alternative_timeout;
  std::uint32_t rate_limit;
};

enum IbvQpMask : int {
  kIbvMaskState = 1 << 0,
  kIbvMaskAccess = 1 << 3,
  kIbvMaskPkey = 1 << 4,
  kIbvMaskPort = 1 << 5,
  kIbvMaskAddress = 1 << 7,
  kIbvMaskMtu = 1 << 8,
  kIbvMaskTimeout = 1 << 9,
  kIbvMaskRetries = 1 << 10,
  kIbvMaskReceiverRetries = 1 << 11,
  kIbvMaskReceivePsn = 1 << 12,
  kIbvMaskReads = 1 << 13,
  kIbvMaskReceiverTimer = 1 << 15,
  kIbvMaskSendPsn = 1 << 16,
  kIbvMaskPeerReads = 1 << 17,
  kIbvMaskPeerQp = 1 << 20,
};

inline constexpr int kIbvLocalWrite = 1;
inline constexpr int kIbvRemoteWrite = 1 << 1;
inline constexpr int kIbvRemoteRead = 1 << 2;

struct Verbs {
  IbvDevice** (*device_list)(int* count);
  void (*free_device_list)(IbvDevice** list);
  const char* (*device_name)(IbvDevice* device);
  IbvContext* (*open_device)(IbvDevice* device);
  int (*close_device)(IbvContext* context);
  int (*query_device)(IbvContext* context, IbvDeviceAttributes* attributes);
  int (*query_port)(IbvContext* context, std::uint8_t port, IbvPortAttributes* attributes);
  // Negative: -errno.
  std::ptrdiff_t (*query_gid_table)(IbvContext* context, IbvGidEntry* entries, std::size_t count,
                                    std::uint32_t flags, std::size_t entry_bytes);
  IbvPd* (*alloc_pd)(IbvContext* context);
  int (*dealloc_pd)(IbvPd* pd);
  IbvMr* (*reg_mr)(IbvPd* pd, void* address, std::size_t bytes, int access);
  int (*dereg_mr)(IbvMr* mr);
  IbvChannel* (*create_channel)(IbvContext* context);
  int (*destroy_channel)(IbvChannel* channel);
  IbvCq* (*create_cq)(IbvContext* context, int entries, void* owner, IbvChannel* channel,
                      int vector);
  int (*destroy_cq)(IbvCq* cq);
  int (*get_cq_event)(IbvChannel* channel, IbvCq** cq, void** owner);
  void (*ack_cq_events)(IbvCq* cq, unsigned count);
  IbvQp* (*create_qp)(IbvPd* pd, IbvQpInit* init);
  int (*modify_qp)(IbvQp* qp, IbvQpAttributes* attributes, int mask);
  int (*destroy_qp)(IbvQp* qp);
};

// kSetup: this machine has none, or too old a one, and what to do.  Loads once; any thread.
Result<const Verbs*> load_verbs();

// Owns what the library has made; `kEnd` is the member of Verbs that ends it.
template <class T, auto kEnd>
class IbvOwner {
 public:
  IbvOwner() noexcept = default;
  IbvOwner(const Verbs& verbs, T* object) noexcept : verbs_(&verbs), object_(object) {}
  IbvOwner(IbvOwner&& other) noexcept
      : verbs_(other.verbs_), object_(std::exchange(other.object_, nullptr)) {}
  IbvOwner& operator=(IbvOwner&& other) noexcept {
    if (this != &other) {
      reset();
      verbs_ = other.verbs_;
      object_ = std::exchange(other.object_, nullptr);
    }
    return *this;
  }
  ~IbvOwner() { reset(); }

  T* get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }
  void reset() noexcept {
    if (object_ != nullptr) (verbs_->*kEnd)(std::exchange(object_, nullptr));
  }

 private:
  const Verbs* verbs_ = nullptr;
  T* object_ = nullptr;
};

using OwnedContext = IbvOwner<IbvContext, &Verbs::close_device>;
using OwnedPd = IbvOwner<IbvPd, &Verbs::dealloc_pd>;
using OwnedMr = IbvOwner<IbvMr, &Verbs::dereg_mr>;
using OwnedChannel = IbvOwner<IbvChannel, &Verbs::destroy_channel>;
using OwnedCq = IbvOwner<IbvCq, &Verbs::destroy_cq>;
using OwnedQp = IbvOwner<IbvQp, &Verbs::destroy_qp>;

}  // namespace infinistore
