//! The items of a module, as far as its public interface needs them.

use crate::source::{Token, closing, is, item_end, shown, tree};

/// What stands in a module, or in the body of an `impl` or a trait.
#[derive(Default)]
pub(crate) struct Items {
    pub(crate) all: Vec<Item>,
    pub(crate) public_uses: Vec<Vec<String>>,
    pub(crate) impls: Vec<Impl>,
}

pub(crate) struct Item {
    pub(crate) name: String,
    /// `fn`, `struct`, ...
    pub(crate) kind: String,
    pub(crate) is_public: bool,
    /// From the documentation.
    pub(crate) is_hidden: bool,
    is_non_exhaustive: bool,
    derives: Vec<String>,
    /// From behind the visibility to its body.
    head: Vec<Token>,
    /// Between the brackets, if it has any.
    body: Vec<Token>,
}

pub(crate) struct Impl {
    /// The name of the type.
    pub(crate) of: String,
    pub(crate) of_trait: Option<String>,
    pub(crate) items: Items,
}

const KINDS: [&str; 9] = ["fn", "struct", "enum", "trait", "union", "type", "const", "static", "mod"];

impl Items {
    pub(crate) fn read(tokens: &[Token]) -> Self {
        let mut items = Self::default();
        let (mut at, mut macros) = (0, Vec::new());
        while at < tokens.len() {
            let end = item_end(tokens, at).max(at + 1);
            let item = &tokens[at..end];
            if is(item, 0, &["macro_rules", "!"])
                && item
                    .windows(3)
                    .any(|part| is(part, 0, &["pub", "struct", "$"]) || is(part, 0, &["pub", "enum", "$"]))
            {
                macros.push(item[2].text.clone());
            } else if is(item, 1, &["!", "{"]) && macros.contains(&item[0].text) {
                items.all.push(Item::of_macro(&item[3..item.len() - 1]));
            } else {
                items.add(item);
            }
            at = end;
        }
        items
    }

    fn add(&mut self, tokens: &[Token]) {
        let (attributes, mut at) = attributes(tokens, 0);
        let is_public = is(tokens, at, &["pub"]) && !is(tokens, at + 1, &["("]);
        at = after_visibility(tokens, at);
        if is(tokens, at, &["use"]) {
            if is_public {
                tree(tokens, at + 1, &mut Vec::new(), &mut self.public_uses);
            }
        } else if is(tokens, at, &["impl"]) {
            self.impls.extend(Impl::read(&tokens[at..]));
        } else if let Some(item) = Item::read(&tokens[at..], &attributes, is_public) {
            self.all.push(item);
        }
    }
}

/// The texts of all attributes that begin here, and where they end.
fn attributes(tokens: &[Token], mut at: usize) -> (Vec<&[Token]>, usize) {
    let mut found = Vec::new();
    loop {
        let open = if is(tokens, at, &["#", "["]) {
            at + 1
        } else if is(tokens, at, &["#", "!", "["]) {
            at + 2
        } else {
            return (found, at);
        };
        let close = closing(tokens, open);
        found.push(&tokens[open + 1..close]);
        at = close + 1;
    }
}

fn after_visibility(tokens: &[Token], at: usize) -> usize {
    match (is(tokens, at, &["pub"]), is(tokens, at + 1, &["("])) {
        (true, true) => closing(tokens, at + 1) + 1,
        (true, false) => at + 1,
        (false, _) => at,
    }
}

impl Item {
    fn read(tokens: &[Token], attributes: &[&[Token]], is_public: bool) -> Option<Self> {
        let known = |token: &Token| KINDS.contains(&token.text.as_str());
        let mut at = tokens.iter().take(4).position(known)?;
        if tokens[..at].iter().any(|token| !matches!(token.text.as_str(), "unsafe" | "async" | "extern")) {
            return None;
        }
        if is(tokens, at, &["const", "fn"]) || is(tokens, at, &["const", "unsafe"]) {
            at = tokens.iter().position(|token| token.text == "fn")?;
        }
        let kind = tokens[at].text.clone();
        let name = tokens.get(at + 1)?.text.clone();
        let (head, body) = split_body(tokens, &kind);
        let derives = attributes.iter().filter(|attribute| is(attribute, 0, &["derive"]));
        let derives = derives.flat_map(|attribute| parts(&attribute[2..attribute.len() - 1]));
        Some(Self {
            name,
            is_public,
            is_hidden: attributes.iter().any(|attribute| is(attribute, 0, &["doc", "(", "hidden"])),
            is_non_exhaustive: attributes.iter().any(|attribute| is(attribute, 0, &["non_exhaustive"])),
            derives: derives.map(shown).collect(),
            head: head.to_vec(),
            body: body.to_vec(),
            kind,
        })
    }

    /// What a macro makes of a definition whose first word is the name.
    fn of_macro(tokens: &[Token]) -> Self {
        let kind = Token { text: "item".to_owned(), line: tokens[0].line };
        Self {
            name: tokens[0].text.clone(),
            kind: kind.text.clone(),
            is_public: true,
            is_hidden: false,
            is_non_exhaustive: false,
            derives: Vec::new(),
            head: std::iter::once(kind).chain(tokens.iter().cloned()).collect(),
            body: Vec::new(),
        }
    }

    pub(crate) fn is_type(&self) -> bool {
        matches!(self.kind.as_str(), "struct" | "enum" | "union" | "trait" | "item")
    }

    /// Paths, and what is to be said of them, for an item that is public at a path.
    pub(crate) fn lines(&self, path: &str) -> Vec<(String, String)> {
        let name = self.head.iter().position(|token| token.text == self.name).unwrap_or(0);
        let (before, after) = (shown(&self.head[..name]), shown(&self.head[name + 1..]));
        let space = if after.starts_with(|c: char| c.is_alphabetic()) { " " } else { "" };
        let mut line = format!("{before} {path}{space}{after}");
        let mut lines = Vec::new();
        match self.kind.as_str() {
            "struct" => line += &self.fields(),
            "enum" => lines.extend(parts(&self.body).map(|variant| variant_line(path, variant))),
            "trait" => {
                let items = Items::read(&self.body).all;
                lines.extend(items.iter().flat_map(|item| item.lines(&format!("{path}::{}", item.name))));
            }
            _ => {}
        }
        if self.is_non_exhaustive {
            line += ", non-exhaustive";
        }
        if !self.derives.is_empty() {
            line = format!("{line}: {}", self.derives.join(", "));
        }
        lines.insert(0, (path.to_owned(), line));
        lines
    }

    fn fields(&self) -> String {
        let all: Vec<&[Token]> = parts(&self.body).collect();
        let public = all.iter().filter_map(|field| {
            let at = attributes(field, 0).1;
            let is_public = is(field, at, &["pub"]) && !is(field, at + 1, &["("]);
            is_public.then(|| shown(&field[at + 1..]))
        });
        let mut public: Vec<String> = public.collect();
        let is_tuple = public.iter().all(|field| !field.contains(": ")) && !public.is_empty();
        if public.len() < all.len() {
            public.push("..".to_owned());
        }
        match (public.is_empty(), is_tuple) {
            (true, _) => String::new(),
            (false, true) => format!("({})", public.join(", ")),
            (false, false) => format!(" {{ {} }}", public.join(", ")),
        }
    }
}

fn variant_line(path: &str, variant: &[Token]) -> (String, String) {
    let at = attributes(variant, 0).1;
    let fields = without_attributes(&variant[at + 1..]);
    let space = if is(&fields, 0, &["{"]) { " " } else { "" };
    let path = format!("{path}::{}", variant[at].text);
    (path.clone(), format!("{path}{space}{}", shown(&fields)))
}

fn without_attributes(tokens: &[Token]) -> Vec<Token> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if is(tokens, at, &["#", "["]) {
            at = closing(tokens, at + 1) + 1;
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// The head of an item, and what its brackets hold. A value is left out.
fn split_body<'a>(tokens: &'a [Token], kind: &str) -> (&'a [Token], &'a [Token]) {
    let has_value = matches!(kind, "const" | "static" | "type");
    let (mut at, mut angles) = (0, 0_i32);
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "{" => return (&tokens[..at], &tokens[at + 1..closing(tokens, at)]),
            "(" if kind == "struct" => return (&tokens[..at], &tokens[at + 1..closing(tokens, at)]),
            "=" if has_value && angles == 0 => return (&tokens[..at], &[]),
            ";" => return (&tokens[..at], &[]),
            "(" | "[" => at = closing(tokens, at),
            "<" => angles += 1,
            ">" => angles -= 1,
            _ => {}
        }
        at += 1;
    }
    (tokens, &[])
}

/// What stands between the commas, but not those inside of brackets.
fn parts(tokens: &[Token]) -> impl Iterator<Item = &[Token]> {
    let (mut found, mut start, mut at, mut angles) = (Vec::new(), 0, 0, 0_i32);
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "{" | "(" | "[" => at = closing(tokens, at),
            "<" => angles += 1,
            ">" if !is(tokens, at.saturating_sub(1), &["-"]) => angles -= 1,
            "," if angles == 0 => {
                found.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    found.push(&tokens[start.min(tokens.len())..]);
    found.into_iter().filter(|part| !part.is_empty())
}

impl Impl {
    fn read(tokens: &[Token]) -> Option<Self> {
        let body = tokens.iter().position(|token| token.text == "{")?;
        let mut head = &tokens[1..body];
        if is(head, 0, &["<"]) {
            head = &head[angles_end(head)..];
        }
        let end = head.iter().position(|token| token.text == "where").unwrap_or(head.len());
        let mut angles = 0_i32;
        let middle = head[..end].iter().position(|token| {
            angles += i32::from(token.text == "<") - i32::from(token.text == ">");
            angles == 0 && token.text == "for"
        });
        let (of_trait, of) = match middle {
            Some(at) => (Some(shown(&head[..at])), &head[at + 1..end]),
            None => (None, &head[..end]),
        };
        let words = of.iter().take_while(|token| token.text != "<");
        let of = words.filter(|token| token.text.starts_with(char::is_alphabetic)).last()?.text.clone();
        Some(Self { of, of_trait, items: Items::read(&tokens[body + 1..closing(tokens, body)]) })
    }
}

/// Where the angle brackets that open at the beginning are closed.
fn angles_end(tokens: &[Token]) -> usize {
    let mut depth = 0_i32;
    for (at, token) in tokens.iter().enumerate() {
        let arrow = at > 0 && tokens[at - 1].text == "-";
        depth += i32::from(token.text == "<") - i32::from(token.text == ">" && !arrow);
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}
