//! Reads constraints.

use super::{
    Domain, Error, Value,
    constraint::{Expression, Operator, Type},
    error::similar,
};

/// The depth of brackets that no user needs.
const DEPTH_MAX: usize = 64;
/// In characters.
const LENGTH_MAX: usize = 2000;
const SYMBOLS: &str = "numbers, names, texts, + - * / < <= > >= == != and or not ( )";

/// Where a constraint goes wrong, in characters from 0, and how.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) at: usize,
    pub(super) message: String,
}

fn wrong<T>(at: usize, message: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { at, message: message.into() })
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Number(f64),
    Text(String),
    Name(String),
    /// An operator, bracket or word of the language.
    Symbol(&'static str),
    End,
}

impl Token {
    fn shown(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
            Self::Name(name) => name.clone(),
            Self::Symbol(symbol) => (*symbol).to_owned(),
            Self::End => "the end".to_owned(),
        }
    }
}

/// A recursive descent over the tokens, with the types of both sides checked on the way.
pub(super) struct Parser<'t> {
    chars: Vec<char>,
    /// Where the next token is looked for.
    at: usize,
    /// The token under consideration, and where it begins.
    token: Token,
    start: usize,
    depth: usize,
    known: &'t [(&'t str, &'t Domain)],
}

type Typed = (Expression, Type);

const COMPARISONS: [(&str, Operator); 6] = [
    ("<=", Operator::AtMost),
    (">=", Operator::AtLeast),
    ("==", Operator::Equal),
    ("!=", Operator::Unequal),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

impl<'t> Parser<'t> {
    pub(super) fn new(text: &str, known: &'t [(&'t str, &'t Domain)]) -> Self {
        Self { chars: text.chars().collect(), at: 0, token: Token::End, start: 0, depth: 0, known }
    }

    /// The whole constraint, which must be true or false.
    pub(super) fn whole(mut self) -> Result<Expression, Wrong> {
        if self.chars.len() > LENGTH_MAX {
            return wrong(
                LENGTH_MAX,
                format!("the constraint is too long; expected at most {LENGTH_MAX} characters"),
            );
        }
        self.advance()?;
        let begin = self.start;
        let (expression, kind) = self.either()?;
        if self.token != Token::End {
            let shown = self.token.shown();
            return wrong(self.start, format!("`{shown}` is too much; expected an operator or the end"));
        }
        if kind != Type::Truth {
            return wrong(begin, format!("this is {}; expected a comparison", kind.name()));
        }
        Ok(expression)
    }

    fn either(&mut self) -> Result<Typed, Wrong> {
        self.chain(&[("or", Operator::Or)], Type::Truth, Self::both)
    }

    fn both(&mut self) -> Result<Typed, Wrong> {
        self.chain(&[("and", Operator::And)], Type::Truth, Self::negation)
    }

    fn negation(&mut self) -> Result<Typed, Wrong> {
        if self.token != Token::Symbol("not") {
            return self.comparison();
        }
        let at = self.start;
        self.advance()?;
        let (inner, kind) = self.deeper(Self::negation)?;
        expect(kind, Type::Truth, at, "not", "right")?;
        Ok((Expression::Not(Box::new(inner)), Type::Truth))
    }

    fn comparison(&mut self) -> Result<Typed, Wrong> {
        let (left, left_type) = self.sum()?;
        let Some((symbol, operator)) = self.operator(&COMPARISONS) else { return Ok((left, left_type)) };
        let at = self.start;
        self.advance()?;
        let (right, right_type) = self.sum()?;
        if left_type != right_type {
            let (left, right) = (left_type.name(), right_type.name());
            return wrong(at, format!("{left} is compared with {right}; expected two of the same kind"));
        }
        if !matches!(operator, Operator::Equal | Operator::Unequal) {
            expect(left_type, Type::Number, at, symbol, "left")?;
        }
        if self.operator(&COMPARISONS).is_some() {
            return wrong(self.start, "comparisons cannot be chained; write `a < b and b < c`");
        }
        Ok((Expression::Binary(operator, Box::new(left), Box::new(right)), Type::Truth))
    }

    fn sum(&mut self) -> Result<Typed, Wrong> {
        self.chain(&[("+", Operator::Add), ("-", Operator::Subtract)], Type::Number, Self::product)
    }

    fn product(&mut self) -> Result<Typed, Wrong> {
        self.chain(&[("*", Operator::Multiply), ("/", Operator::Divide)], Type::Number, Self::signed)
    }

    fn signed(&mut self) -> Result<Typed, Wrong> {
        if self.token != Token::Symbol("-") {
            return self.atom();
        }
        let at = self.start;
        self.advance()?;
        let (inner, kind) = self.deeper(Self::signed)?;
        expect(kind, Type::Number, at, "-", "right")?;
        Ok((Expression::Minus(Box::new(inner)), Type::Number))
    }

    fn atom(&mut self) -> Result<Typed, Wrong> {
        let at = self.start;
        let atom = match self.token.clone() {
            Token::Number(number) => (Expression::Constant(Value::Float(number)), Type::Number),
            Token::Text(text) => (Expression::Constant(Value::Text(text)), Type::Text),
            Token::Symbol("true") => (Expression::Constant(Value::Bool(true)), Type::Truth),
            Token::Symbol("false") => (Expression::Constant(Value::Bool(false)), Type::Truth),
            Token::Name(name) => self.parameter(name, at)?,
            Token::Symbol("(") => {
                self.advance()?;
                let inner = self.deeper(Self::either)?;
                if self.token != Token::Symbol(")") {
                    return wrong(self.start, "a `(` is not closed; expected `)`");
                }
                inner
            }
            Token::Symbol(symbol) => {
                return wrong(at, format!("`{symbol}` is misplaced; expected a number, name, text or `(`"));
            }
            Token::End => {
                return wrong(at, "the constraint ends too early; expected a number, name, text or `(`");
            }
        };
        self.advance()?;
        Ok(atom)
    }

    fn parameter(&self, name: String, at: usize) -> Result<Typed, Wrong> {
        let Some((_, domain)) = self.known.iter().find(|(known, _)| *known == name) else {
            let similar = similar(&name, self.known.iter().map(|(known, _)| *known)).map(str::to_owned);
            return wrong(at, Error::Unknown { name, place: "in the space", similar }.to_string());
        };
        match Type::of(domain) {
            Some(kind) => Ok((Expression::Name(name), kind)),
            None => wrong(
                at,
                format!(
                    "`{name}` has values of several kinds; expected a parameter whose values are of one kind"
                ),
            ),
        }
    }

    /// Operands with operators between them, from the left.
    fn chain(
        &mut self,
        operators: &[(&'static str, Operator)],
        kind: Type,
        operand: fn(&mut Self) -> Result<Typed, Wrong>,
    ) -> Result<Typed, Wrong> {
        let mut left = operand(self)?;
        while let Some((symbol, operator)) = self.operator(operators) {
            let at = self.start;
            self.advance()?;
            let right = operand(self)?;
            expect(left.1, kind, at, symbol, "left")?;
            expect(right.1, kind, at, symbol, "right")?;
            left = (Expression::Binary(operator, Box::new(left.0), Box::new(right.0)), kind);
        }
        Ok(left)
    }

    fn operator(&self, among: &[(&'static str, Operator)]) -> Option<(&'static str, Operator)> {
        among.iter().find(|(symbol, _)| self.token == Token::Symbol(symbol)).copied()
    }

    fn deeper(&mut self, read: fn(&mut Self) -> Result<Typed, Wrong>) -> Result<Typed, Wrong> {
        if self.depth == DEPTH_MAX {
            return wrong(
                self.start,
                format!("the constraint is nested too deeply; expected at most {DEPTH_MAX} levels"),
            );
        }
        self.depth += 1;
        let inner = read(self);
        self.depth -= 1;
        inner
    }

    /// Reads the next token.
    fn advance(&mut self) -> Result<(), Wrong> {
        while self.chars.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
        self.start = self.at;
        let Some(&first) = self.chars.get(self.at) else {
            self.token = Token::End;
            return Ok(());
        };
        self.token = match first {
            '\'' | '"' | '`' => self.quoted(first)?,
            c if c.is_ascii_digit() || c == '.' => self.number()?,
            c if c.is_alphabetic() || c == '_' => {
                let word = self.take(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
                let known = ["and", "or", "not", "true", "false"].into_iter().find(|known| *known == word);
                known.map_or(Token::Name(word), Token::Symbol)
            }
            _ => self.symbol()?,
        };
        Ok(())
    }

    fn take(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let taken: String = self.chars[self.at..].iter().take_while(|c| wanted(**c)).collect();
        self.at += taken.chars().count();
        taken
    }

    fn quoted(&mut self, quote: char) -> Result<Token, Wrong> {
        self.at += 1;
        let text = self.take(|c| c != quote);
        if self.at == self.chars.len() {
            return wrong(self.start, format!("a text is not closed; expected another `{quote}`"));
        }
        self.at += 1;
        Ok(if quote == '`' { Token::Name(text) } else { Token::Text(text) })
    }

    fn number(&mut self) -> Result<Token, Wrong> {
        let mut text = self.take(|c| c.is_ascii_alphanumeric() || c == '.');
        let sign = self.chars.get(self.at).copied().filter(|c| matches!(c, '+' | '-'));
        if let Some(sign) = sign.filter(|_| text.ends_with(['e', 'E'])) {
            self.at += 1;
            text.push(sign);
            text += &self.take(|c| c.is_ascii_alphanumeric() || c == '.');
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Token::Number(number)),
            _ => wrong(self.start, format!("`{text}` is not a number")),
        }
    }

    fn symbol(&mut self) -> Result<Token, Wrong> {
        let rest = &self.chars[self.at..];
        let known = ["<=", ">=", "==", "!=", "<", ">", "+", "-", "*", "/", "(", ")"];
        let found =
            known.into_iter().find(|symbol| symbol.chars().eq(rest.iter().take(symbol.len()).copied()));
        if let Some(symbol) = found {
            self.at += symbol.len();
            return Ok(Token::Symbol(symbol));
        }
        if rest[0] == '=' {
            return wrong(self.at, "`=` is unknown; write `==` for equality");
        }
        wrong(self.at, format!("`{}` is unknown; expected one of {SYMBOLS}", rest[0]))
    }
}

fn expect(found: Type, wanted: Type, at: usize, symbol: &str, side: &str) -> Result<(), Wrong> {
    if found == wanted {
        return Ok(());
    }
    let (found, wanted) = (found.name(), wanted.name());
    wrong(at, format!("`{symbol}` has {found} on its {side}; expected {wanted}"))
}
