//! Answers of name servers, as `ropewalk up` reads them for the names of its hub.

use simple_dns::Packet;
use simple_dns::rdata::RData;

/// Most addresses in an answer of so many bytes: a record has twelve bytes at least before its address.
const RECORD_BYTES: usize = 12;

/// Takes the input for an answer.
///
/// # Panics
/// When it has more addresses than there is room for.
pub fn dns(data: &[u8]) {
    let Ok(packet) = Packet::parse(data) else {
        return;
    };
    let records = packet.answers.iter();
    let is_address = |rdata: &RData<'_>| matches!(rdata, RData::A(_) | RData::AAAA(_));
    let addresses = records.filter(|record| is_address(&record.rdata)).count();
    assert!(addresses <= data.len() / RECORD_BYTES);
}
