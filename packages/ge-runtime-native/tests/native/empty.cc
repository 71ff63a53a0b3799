// The libraries of CANN are thin in the tests: what they offer is in fake_cann.
