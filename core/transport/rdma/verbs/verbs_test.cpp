// The declarations of verbs.h beside those of rdma-core, where its header is installed.
#include "core/transport/rdma/verbs/verbs.h"

#include <doctest/doctest.h>

#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>

namespace infinistore {
namespace {

#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs))
#define SAME_PLACE(ours, field, theirs, their_field)                     \
  static_assert(offsetof(ours, field) == offsetof(theirs, their_field)); \
  static_assert(sizeof(ours::field) == sizeof(theirs::their_field))

SAME_SIZE(IbvPd, ibv_pd);
SAME_SIZE(IbvMr, ibv_mr);
SAME_PLACE(IbvMr, local_key, ibv_mr, lkey);
SAME_PLACE(IbvMr, remote_key, ibv_mr, rkey);
SAME_PLACE(IbvChannel, fd, ibv_comp_channel, fd);
SAME_PLACE(IbvCq, context, ibv_cq, context);
SAME_PLACE(IbvQp, context, ibv_qp, context);
SAME_PLACE(IbvQp, number, ibv_qp, qp_num);
SAME_SIZE(IbvSge, ibv_sge);
SAME_PLACE(IbvSge, bytes, ibv_sge, length);
SAME_PLACE(IbvSge, local_key, ibv_sge, lkey);
static_assert(sizeof(IbvSendWr) >= sizeof(ibv_send_wr));
SAME_PLACE(IbvSendWr, opcode, ibv_send_wr, opcode);
SAME_PLACE(IbvSendWr, flags, ibv_send_wr, send_flags);
SAME_PLACE(IbvSendWr, remote_address, ibv_send_wr, wr.rdma.remote_addr);
SAME_PLACE(IbvSendWr, remote_key, ibv_send_wr, wr.rdma.rkey);
SAME_SIZE(IbvWc, ibv_wc);
SAME_PLACE(IbvWc, status, ibv_wc, status);
SAME_PLACE(IbvWc, vendor_error, ibv_wc, vendor_err);
SAME_PLACE(IbvContext, calls.poll_cq, ibv_context, ops.poll_cq);
SAME_PLACE(IbvContext, calls.request_notify, ibv_context, ops.req_notify_cq);
SAME_PLACE(IbvContext, calls.post_send, ibv_context, ops.post_send);
SAME_PLACE(IbvContext, async_fd, ibv_context, async_fd);
static_assert(sizeof(IbvDeviceAttributes) >= sizeof(ibv_device_attr));
SAME_PLACE(IbvDeviceAttributes, qp_wr_max, ibv_device_attr, max_qp_wr);
SAME_PLACE(IbvDeviceAttributes, cqe_max, ibv_device_attr, max_cqe);
SAME_PLACE(IbvDeviceAttributes, qp_reads_max, ibv_device_attr, max_qp_rd_atom);
SAME_PLACE(IbvDeviceAttributes, qp_init_reads_max, ibv_device_attr, max_qp_init_rd_atom);
static_assert(offsetof(IbvDeviceAttributes, others) ==
              offsetof(ibv_device_attr, max_ee_init_rd_atom));
static_assert(sizeof(IbvPortAttributes) >= sizeof(ibv_port_attr));
SAME_PLACE(IbvPortAttributes, state, ibv_port_attr, state);
SAME_PLACE(IbvPortAttributes, mtu_active, ibv_port_attr, active_mtu);
SAME_PLACE(IbvPortAttributes, message_bytes_max, ibv_port_attr, max_msg_sz);
SAME_PLACE(IbvPortAttributes, lid, ibv_port_attr, lid);
SAME_PLACE(IbvPortAttributes, link_layer, ibv_port_attr, link_layer);
SAME_SIZE(IbvGidEntry, ibv_gid_entry);
SAME_PLACE(IbvGidEntry, type, ibv_gid_entry, gid_type);
SAME_SIZE(IbvQpInit, ibv_qp_init_attr);
SAME_PLACE(IbvQpInit, capacities, ibv_qp_init_attr, cap);
SAME_SIZE(IbvAddress, ibv_ah_attr);
SAME_PLACE(IbvAddress, lid, ibv_ah_attr, dlid);
SAME_PLACE(IbvAddress, is_global, ibv_ah_attr, is_global);
SAME_SIZE(IbvQpAttributes, ibv_qp_attr);
SAME_PLACE(IbvQpAttributes, access, ibv_qp_attr, qp_access_flags);
SAME_PLACE(IbvQpAttributes, address, ibv_qp_attr, ah_attr);
SAME_PLACE(IbvQpAttributes, reads_max, ibv_qp_attr, max_rd_atomic);
SAME_PLACE(IbvQpAttributes, retries, ibv_qp_attr, retry_cnt);

TEST_CASE("the numbers of verbs are those of rdma-core") {
  CHECK(kIbvRdmaWrite == IBV_WR_RDMA_WRITE);
  CHECK(kIbvRdmaRead == IBV_WR_RDMA_READ);
  CHECK(kIbvSignaled == IBV_SEND_SIGNALED);
  CHECK(kIbvReliable == IBV_QPT_RC);
  CHECK(kIbvQpError == static_cast<int>(IBV_QPS_ERR));
  CHECK(kIbvQpReadyToSend == static_cast<int>(IBV_QPS_RTS));
  CHECK(kIbvMaskPeerQp == static_cast<int>(IBV_QP_DEST_QPN));
  CHECK(kIbvMaskReceiverTimer == static_cast<int>(IBV_QP_MIN_RNR_TIMER));
  CHECK(kIbvMaskReads == static_cast<int>(IBV_QP_MAX_QP_RD_ATOMIC));
  CHECK(kIbvMaskPeerReads == static_cast<int>(IBV_QP_MAX_DEST_RD_ATOMIC));
  CHECK(kIbvMaskAddress == static_cast<int>(IBV_QP_AV));
  CHECK(kIbvRemoteRead == IBV_ACCESS_REMOTE_READ);
  CHECK(kIbvPortActive == IBV_PORT_ACTIVE);
  CHECK(kIbvLinkEthernet == IBV_LINK_LAYER_ETHERNET);
  CHECK(kIbvGidRoceV2 == IBV_GID_TYPE_ROCE_V2);
}

}  // namespace
}  // namespace infinistore
#endif
