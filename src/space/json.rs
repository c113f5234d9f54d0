//! Parameters as a JSON object, for journals and messages.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, Visitor},
    ser::SerializeMap,
};

use super::{Params, Value};

impl Serialize for Params {
    /// An object with a value for each parameter, in the order of the space.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.len()))?;
        for (name, value) in self.iter() {
            match value {
                Value::Bool(value) => map.serialize_entry(name, value)?,
                Value::Int(value) => map.serialize_entry(name, value)?,
                Value::Float(value) => map.serialize_entry(name, value)?,
                Value::Text(value) => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Params {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = Params;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a value for each parameter")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Params, A::Error> {
                let mut all = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, serde_json::Value>()? {
                    let value = match &value {
                        serde_json::Value::Bool(value) => Value::Bool(*value),
                        serde_json::Value::String(text) => Value::Text(text.clone()),
                        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                            (Some(whole), _) => Value::Int(whole),
                            (None, Some(number)) => Value::Float(number),
                            (None, None) => return Err(de::Error::custom(format!("`{name}` is too large"))),
                        },
                        other => {
                            let allowed = "a number, a text, true or false";
                            return Err(de::Error::custom(format!(
                                "`{name}` is {other}; expected {allowed}"
                            )));
                        }
                    };
                    all.push((name, value));
                }
                Ok(all.into_iter().collect())
            }
        }
        from.deserialize_map(Values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_survive_json_in_their_order() {
        let values: [(&str, Value); 5] = [
            ("width", 64.into()),
            ("lr", 0.1.into()),
            ("scale", 64.0.into()),
            ("act", "relu".into()),
            ("bias", true.into()),
        ];
        let params = Params::from_iter(values);
        let text = serde_json::to_string(&params).unwrap();
        assert_eq!(text, r#"{"width":64,"lr":0.1,"scale":64.0,"act":"relu","bias":true}"#);
        assert_eq!(serde_json::from_str::<Params>(&text).unwrap(), params);
        let error = serde_json::from_str::<Params>(r#"{"lr": [1]}"#).unwrap_err().to_string();
        assert!(error.starts_with("`lr` is [1]; expected a number"), "{error}");
    }
}
