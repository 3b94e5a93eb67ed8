#pragma once
// The double of libibverbs: one device in this process, whose queue pairs move bytes by memcpy.
//
// A test loads it by INFINISTORE_VERBS_LIBRARY and reaches these by the same library.

extern "C" {
// The next `count` orders that are carried out end with this status (of verbs.h) instead.
void fake_verbs_fail_orders(int status, int count);
// The device's port: 1 is up, 0 down; while it is down orders end with "retries exceeded".
void fake_verbs_set_port(int is_up);
// Registering so many bytes in all is allowed; more fails with this errno.
void fake_verbs_limit_memory(unsigned long long bytes, int error);
// The most orders that were on their way at once, and completions lost for want of room: 0.
int fake_verbs_orders_seen(void);
int fake_verbs_overflows(void);
// What is not ended: registrations, queue pairs.
int fake_verbs_live_registrations(void);
int fake_verbs_live_queue_pairs(void);
}
