//! Fields of JSON files that hold secrets. No message shows a value.

use std::path::Path;

use serde_json::{Map, Value};

use super::Error;

/// The object in a file.
pub(super) struct Fields<'a> {
    path: &'a Path,
    values: Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn parse(path: &'a Path, text: &str) -> Result<Self, Error> {
        let wrong = |problem: String| Error::FileContents { path: path.to_owned(), problem };
        match serde_json::from_str(text) {
            Ok(Value::Object(values)) => Ok(Self { path, values }),
            Ok(_) => Err(wrong("it is not a JSON object".to_owned())),
            // Says where, and what was expected, but not what was there.
            Err(error) => Err(wrong(format!("it is not JSON: {error}"))),
        }
    }

    /// What is wrong with a field.
    pub(super) fn wrong(&self, name: &str, problem: &str) -> Error {
        Error::FileContents { path: self.path.to_owned(), problem: format!("its field `{name}` {problem}") }
    }

    fn take(&mut self, name: &str) -> Result<Value, Error> {
        self.values.remove(name).ok_or_else(|| self.wrong(name, "is missing"))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<String, Error> {
        match self.take(name)? {
            Value::String(text) => Ok(text),
            _ => Err(self.wrong(name, "is not a text")),
        }
    }

    /// None if it is missing.
    pub(super) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, Error> {
        let Some(value) = self.values.remove(name) else { return Ok(None) };
        let Value::Array(values) = value else { return Err(self.wrong(name, "is not a list")) };
        let text = |value| match value {
            Value::String(text) => Ok(text),
            _ => Err(self.wrong(name, "has an entry that is not a text")),
        };
        values.into_iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// Nothing else may be there.
    pub(super) fn end(self) -> Result<(), Error> {
        match self.values.keys().next() {
            Some(name) => Err(self.wrong(name, "is not known")),
            None => Ok(()),
        }
    }
}
