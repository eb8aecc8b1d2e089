#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| larder_hostile::feed("bad_slot_record", bytes));
