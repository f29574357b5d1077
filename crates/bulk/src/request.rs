//! What a client asks for on its stream: 13 bytes, then nothing (download) or data (upload).

use anyhow::{Result, bail};

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Number of the flow, which the server repeats in its report.
    pub(crate) flow: u32,
    /// Whether the client sends.
    pub(crate) up: bool,
    /// Bytes to send; without end when absent.
    pub(crate) bytes: Option<u64>,
}

impl Request {
    pub(crate) const LENGTH: usize = 13;

    pub(crate) fn encode(self) -> [u8; Self::LENGTH] {
        let mut text = [0; Self::LENGTH];
        text[0] = u8::from(self.up);
        text[1..5].copy_from_slice(&self.flow.to_be_bytes());
        text[5..].copy_from_slice(&self.bytes.unwrap_or(u64::MAX).to_be_bytes());
        text
    }

    pub(crate) fn decode(text: [u8; Self::LENGTH]) -> Result<Self> {
        let [direction, f0, f1, f2, f3, bytes @ ..] = text;
        let up = match direction {
            0 => false,
            1 => true,
            other => bail!("a request for direction {other}; there are 0 (down) and 1 (up)"),
        };
        let bytes = u64::from_be_bytes(bytes);
        Ok(Self {
            flow: u32::from_be_bytes([f0, f1, f2, f3]),
            up,
            bytes: (bytes != u64::MAX).then_some(bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_is_written() {
        for bytes in [None, Some(0), Some(1 << 40)] {
            for up in [false, true] {
                let request = Request {
                    flow: 258,
                    up,
                    bytes,
                };
                assert_eq!(Request::decode(request.encode()).unwrap(), request);
            }
        }
        assert!(Request::decode([2; Request::LENGTH]).is_err());
    }
}
