//! Messages to a rendezvous and back: a length, a kind, and its fields.

use std::io::{self, ErrorKind};

/// The longest message in bytes: far more than the addresses of a thousand members.
pub(super) const BYTES_MAX: usize = 1 << 20;
/// The bytes of a length.
pub(super) const HEADER: usize = 4;

/// What a member asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Set {
        key: String,
        value: Vec<u8>,
    },
    /// As soon as it is there, within so many milliseconds.
    Get {
        key: String,
        wait_ms: u32,
    },
    Add {
        key: String,
        delta: i64,
    },
    /// That all are there, within so many milliseconds.
    Wait {
        keys: Vec<String>,
        wait_ms: u32,
    },
    Contains {
        keys: Vec<String>,
    },
    Delete {
        key: String,
    },
}

/// What it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Response {
    Done,
    Value(Vec<u8>),
    Sum(i64),
    Flag(bool),
    /// Not within that time.
    NotYet,
    Refused(String),
}

fn invalid(problem: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, problem)
}

/// The length of a message from its header.
pub(super) fn length(header: [u8; HEADER]) -> io::Result<usize> {
    let length = u32::from_be_bytes(header) as usize;
    if length == 0 || length > BYTES_MAX {
        return Err(invalid("a message to a rendezvous is too long, or empty"));
    }
    Ok(length)
}

/// A message with room for its length.
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Self {
        Self(vec![0, 0, 0, 0, kind])
    }

    fn number(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn long(mut self, number: i64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        // What is too long for this is too long for a message.
        let mut all = self.number(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        all.0.extend(bytes);
        all
    }

    fn texts(self, texts: &[String]) -> Self {
        let all = self.number(u32::try_from(texts.len()).unwrap_or(u32::MAX));
        texts.iter().fold(all, |all, text| all.bytes(text.as_bytes()))
    }

    fn finish(mut self) -> io::Result<Vec<u8>> {
        let header = u32::try_from(self.0.len() - HEADER).unwrap_or(u32::MAX).to_be_bytes();
        length(header)?;
        self.0[..HEADER].copy_from_slice(&header);
        Ok(self.0)
    }
}

/// A message without its length.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| invalid("a message is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut all = [0; N];
        all.copy_from_slice(self.take(N)?);
        Ok(all)
    }

    fn kind(&mut self) -> io::Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn number(&mut self) -> io::Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn long(&mut self) -> io::Result<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let length = self.number()?;
        Ok(self.take(length as usize)?.to_vec())
    }

    fn text(&mut self) -> io::Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| invalid("a key is not text"))
    }

    fn texts(&mut self) -> io::Result<Vec<String>> {
        let count = self.number()?;
        // Each takes bytes of the message: a wrong count ends at its end.
        (0..count).map(|_| self.text()).collect()
    }

    fn finish<T>(self, message: T) -> io::Result<T> {
        if self.0.is_empty() { Ok(message) } else { Err(invalid("a message has more than belongs to it")) }
    }
}

impl Request {
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Set { key, value } => Writer::new(1).bytes(key.as_bytes()).bytes(value),
            Self::Get { key, wait_ms } => Writer::new(2).bytes(key.as_bytes()).number(*wait_ms),
            Self::Add { key, delta } => Writer::new(3).bytes(key.as_bytes()).long(*delta),
            Self::Wait { keys, wait_ms } => Writer::new(4).texts(keys).number(*wait_ms),
            Self::Contains { keys } => Writer::new(5).texts(keys),
            Self::Delete { key } => Writer::new(6).bytes(key.as_bytes()),
        }
        .finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut reader = Reader(bytes);
        let request = match reader.kind()? {
            1 => Self::Set { key: reader.text()?, value: reader.bytes()? },
            2 => Self::Get { key: reader.text()?, wait_ms: reader.number()? },
            3 => Self::Add { key: reader.text()?, delta: reader.long()? },
            4 => Self::Wait { keys: reader.texts()?, wait_ms: reader.number()? },
            5 => Self::Contains { keys: reader.texts()? },
            6 => Self::Delete { key: reader.text()? },
            _ => return Err(invalid("a request is of no kind that is known")),
        };
        reader.finish(request)
    }
}

impl Response {
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Done => Writer::new(1),
            Self::Value(value) => Writer::new(2).bytes(value),
            Self::Sum(sum) => Writer::new(3).long(*sum),
            Self::Flag(flag) => Writer::new(4).number((*flag).into()),
            Self::NotYet => Writer::new(5),
            Self::Refused(reason) => Writer::new(6).bytes(reason.as_bytes()),
        }
        .finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut reader = Reader(bytes);
        let response = match reader.kind()? {
            1 => Self::Done,
            2 => Self::Value(reader.bytes()?),
            3 => Self::Sum(reader.long()?),
            4 => Self::Flag(reader.number()? != 0),
            5 => Self::NotYet,
            6 => Self::Refused(reader.text()?),
            _ => return Err(invalid("a response is of no kind that is known")),
        };
        reader.finish(response)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn requests() -> impl Strategy<Value = Request> {
        prop_oneof![
            (".*", vec(any::<u8>(), 0..50)).prop_map(|(key, value)| Request::Set { key, value }),
            (".*", any::<u32>()).prop_map(|(key, wait_ms)| Request::Get { key, wait_ms }),
            (".*", any::<i64>()).prop_map(|(key, delta)| Request::Add { key, delta }),
            (vec(".*", 0..4), any::<u32>()).prop_map(|(keys, wait_ms)| Request::Wait { keys, wait_ms }),
            vec(".*", 0..4).prop_map(|keys| Request::Contains { keys }),
            ".*".prop_map(|key| Request::Delete { key }),
        ]
    }

    fn responses() -> impl Strategy<Value = Response> {
        prop_oneof![
            Just(Response::Done),
            vec(any::<u8>(), 0..50).prop_map(Response::Value),
            any::<i64>().prop_map(Response::Sum),
            any::<bool>().prop_map(Response::Flag),
            Just(Response::NotYet),
            ".*".prop_map(Response::Refused),
        ]
    }

    /// The message behind a length that is right.
    fn body(framed: &[u8]) -> &[u8] {
        let (header, body) = framed.split_at(HEADER);
        assert_eq!(length(header.try_into().expect("four bytes")).expect("short enough"), body.len());
        body
    }

    proptest! {
        #[test]
        fn messages_arrive_as_they_were_sent(request in requests(), response in responses()) {
            let sent = request.encode().expect("short enough");
            prop_assert_eq!(Request::decode(body(&sent)).expect("it makes sense"), request);
            let sent = response.encode().expect("short enough");
            prop_assert_eq!(Response::decode(body(&sent)).expect("it makes sense"), response);
        }

        #[test]
        fn whatever_bytes_come_there_is_no_panic(bytes in vec(any::<u8>(), 0..64)) {
            let _ = (Request::decode(&bytes), Response::decode(&bytes));
        }
    }

    #[test]
    fn long_messages_are_refused() {
        assert!(length(u32::MAX.to_be_bytes()).is_err());
        assert!(length([0; HEADER]).is_err());
        let request = Request::Set { key: String::new(), value: vec![0; BYTES_MAX] };
        assert!(request.encode().is_err());
        // A count that would take gigabytes.
        assert!(Request::decode(&[5, 255, 255, 255, 255]).is_err());
    }
}
