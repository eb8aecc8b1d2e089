#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| larder_fuzz_harness::feed("commit_record", bytes));
