//! A YAML document as a tree in which everything knows its place.

use std::collections::BTreeMap;

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use super::diagnostic::{DiagnosticKind, Place};

/// Larger files are not written by people, but by mistake or malice.
const NODES_MAX: usize = 20_000;

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) content: Content,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Debug, Clone)]
pub(super) struct Scalar {
    pub(super) text: String,
    /// Without quotes.
    pub(super) plain: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) place: Place,
    pub(super) scalar: Scalar,
}

impl Node {
    /// Nothing at all, or `null`.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar(scalar) if scalar.is_null())
    }

    /// In a few words, for messages.
    pub(super) fn shown(&self) -> String {
        match &self.content {
            Content::Scalar(scalar) if scalar.is_null() => "nothing".to_owned(),
            Content::Scalar(scalar) => scalar.shown(),
            Content::List(_) => "a list".to_owned(),
            Content::Map(_) => "a mapping".to_owned(),
        }
    }

    fn size(&self) -> usize {
        1 + match &self.content {
            Content::Scalar(_) => 0,
            Content::List(nodes) => nodes.iter().map(Self::size).sum(),
            Content::Map(entries) => entries.iter().map(|(_, node)| 1 + node.size()).sum(),
        }
    }
}

impl Scalar {
    pub(super) fn is_null(&self) -> bool {
        self.plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    pub(super) fn shown(&self) -> String {
        let short: String =
            self.text.chars().take(60).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let dots = if self.text.chars().count() > 60 { "..." } else { "" };
        let quote = if self.plain { "" } else { "\"" };
        format!("`{quote}{short}{dots}{quote}`")
    }
}

type Failure = (Place, DiagnosticKind);

/// Reads the only document of a text; none if it is empty.
pub(super) fn parse(text: &str) -> Result<Option<Node>, Failure> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: BTreeMap::new(), nodes: 0 };
    let mut document = None;
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => return Ok(document),
            Event::StreamStart | Event::DocumentEnd => {}
            Event::DocumentStart(..) if document.is_some() => {
                return Err(unsupported(&span, "a second document", "one document in a file"));
            }
            Event::DocumentStart(..) => {
                let (event, span) = reader.next()?;
                document = Some(reader.node(event, &span)?);
            }
            event => document = Some(reader.node(event, &span)?),
        }
    }
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), Failure> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => {
                let mark = error.marker();
                let place = Place { line: mark.line().max(1), column: mark.col() + 1, width: 1 };
                // The parser repeats the place, which we write in front.
                let message = error.to_string();
                let message = message.split(" at char ").next().unwrap_or_default();
                let message = message.split(" at byte ").next().unwrap_or_default();
                Err((place, DiagnosticKind::Syntax(message.to_owned())))
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// The node that begins with this event.
    fn node(&mut self, event: Event<'t>, span: &Span) -> Result<Node, Failure> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(unsupported(span, "a file of more than 20000 values", "less"));
        }
        if event.tag().is_some() {
            let tag = span.tag_span().unwrap_or(*span);
            return Err(unsupported(&tag, "a tag (`!`)", "a value without it"));
        }
        let anchor = event.anchor_id();
        let place = place(span);
        let content = match event {
            Event::Scalar(text, style, ..) => Content::Scalar(scalar(&text, style)),
            Event::SequenceStart(..) => Content::List(self.list()?),
            Event::MappingStart(..) => Content::Map(self.map()?),
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(unsupported(
                        span,
                        "an alias inside of what it stands for",
                        "an alias after it",
                    ));
                };
                self.nodes += node.size();
                return Ok(node);
            }
            _ => return Err(unsupported(span, "this", "a value")),
        };
        let node = Node { place, content };
        if let Some(anchor) = anchor {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self) -> Result<Vec<Node>, Failure> {
        let mut nodes = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd | Event::StreamEnd, _) => return Ok(nodes),
                (event, span) => nodes.push(self.node(event, &span)?),
            }
        }
    }

    fn map(&mut self) -> Result<Vec<(Key, Node)>, Failure> {
        let mut entries = Vec::new();
        loop {
            let (event, span) = match self.next()? {
                (Event::MappingEnd | Event::StreamEnd, _) => return Ok(entries),
                next => next,
            };
            let key = self.node(event, &span)?;
            let Content::Scalar(scalar) = key.content else {
                return Err(unsupported(&span, "a list or mapping as a key", "a name"));
            };
            let (event, span) = self.next()?;
            let value = self.node(event, &span)?;
            entries.push((Key { place: key.place, scalar }, value));
        }
    }
}

fn scalar(text: &str, style: ScalarStyle) -> Scalar {
    Scalar { text: text.to_owned(), plain: style == ScalarStyle::Plain }
}

fn unsupported(span: &Span, found: &'static str, allowed: &'static str) -> Failure {
    (place(span), DiagnosticKind::Unsupported { found, allowed })
}

fn place(span: &Span) -> Place {
    let one_line = span.start.line() == span.end.line();
    let width = if one_line { span.end.col().saturating_sub(span.start.col()).max(1) } else { 1 };
    Place { line: span.start.line().max(1), column: span.start.col() + 1, width }
}
