#![no_main]

#[global_allocator]
static ALLOCATOR: ropewalk_tally::Counting = ropewalk_tally::Counting;

libfuzzer_sys::fuzz_target!(|data: &[u8]| ropewalk_fuzz::hub(data));
