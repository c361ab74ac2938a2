// A UCX worker that speaks the protocol of transport/ucx/wire.h as a test wants it: for forged
// messages, and for peers that die at a certain message. It uses tcp alone.
//
// Thread rule: one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_RAW_UCX_WORKER_H_
#define PENSTOCK_TESTS_SUPPORT_RAW_UCX_WORKER_H_

#include <cstddef>
#include <string>

#include "gtest/gtest.h"
#include <ucp/api/ucp.h>

#include "transport/ucx/wire.h"

namespace penstock::testing {

class RawUcxWorker {
 public:
  RawUcxWorker() {
    ucp_config_t* config = nullptr;
    EXPECT_EQ(ucp_config_read(nullptr, nullptr, &config), UCS_OK);
    EXPECT_EQ(ucp_config_modify(config, "TLS", "tcp"), UCS_OK);
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    EXPECT_EQ(ucp_init(&params, config, &context_), UCS_OK);
    ucp_config_release(config);
    ucp_worker_params_t worker = {};
    EXPECT_EQ(ucp_worker_create(context_, &worker, &worker_), UCS_OK);
  }
  explicit RawUcxWorker(const std::string& peer_address) : RawUcxWorker() { Connect(peer_address); }

  ~RawUcxWorker() {
    if (ep_ != nullptr) {
      ucp_request_param_t param = {};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = UCP_EP_CLOSE_FLAG_FORCE;
      ucs_status_ptr_t request = ucp_ep_close_nbx(ep_, &param);
      if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
    }
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }
  RawUcxWorker(const RawUcxWorker&) = delete;
  RawUcxWorker& operator=(const RawUcxWorker&) = delete;

  std::string Address() const {
    ucp_address_t* bytes = nullptr;
    size_t num_bytes = 0;
    EXPECT_EQ(ucp_worker_get_address(worker_, &bytes, &num_bytes), UCS_OK);
    std::string address(reinterpret_cast<const char*>(bytes), num_bytes);
    ucp_worker_release_address(worker_, bytes);
    return address;
  }

  void Connect(const std::string& peer_address) {
    ucp_ep_params_t ep = {};
    ep.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    ep.address = reinterpret_cast<const ucp_address_t*>(peer_address.data());
    ep.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    EXPECT_EQ(ucp_ep_create(worker_, &ep, &ep_), UCS_OK);
  }

  // `callback` gets the messages of this id.
  void Handle(unsigned id, ucp_am_recv_callback_t callback, void* argument) {
    ucp_am_handler_param_t handler = {};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = id;
    handler.cb = callback;
    handler.arg = argument;
    EXPECT_EQ(ucp_worker_set_am_recv_handler(worker_, &handler), UCS_OK);
  }

  // `header` and `data` stay until the worker is destroyed.
  void Send(unsigned id, const void* header, size_t header_bytes, const void* data,
            size_t num_bytes) {
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags =
        num_bytes > transport::ucx::kMaxEagerBytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    ucs_status_ptr_t request =
        ucp_am_send_nbx(ep_, id, header, header_bytes, data, num_bytes, &param);
    EXPECT_FALSE(UCS_PTR_IS_ERR(request));
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }

  void Progress() { ucp_worker_progress(worker_); }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h ep_ = nullptr;  // null: not connected
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_RAW_UCX_WORKER_H_
