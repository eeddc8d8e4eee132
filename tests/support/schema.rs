//! A small checker of JSON Schemas. It knows the keywords our schemas use and refuses any other, so a schema cannot
//! outgrow it unseen.

use serde_json::Value;

/// Checks a value against a schema's text; gives where it differs and how.
pub fn check(schema: &str, value: &Value) -> Option<String> {
    let schema: Value = serde_json::from_str(schema).unwrap();
    differs(&schema, value, &schema, "")
}

fn differs(schema: &Value, value: &Value, root: &Value, at: &str) -> Option<String> {
    schema.as_object().unwrap().iter().find_map(|(keyword, rule)| violates(keyword, rule, value, root, at))
}

fn violates(keyword: &str, rule: &Value, value: &Value, root: &Value, at: &str) -> Option<String> {
    let inside =
        |schema: &Value, value: &Value, key: &str| differs(schema, value, root, &format!("{at}/{key}"));
    let unless = |holds: bool| (!holds).then(|| format!("{at}: {keyword} {rule}, found {value}"));
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    match keyword {
        "$schema" | "title" | "description" | "$defs" => None,
        "$ref" => {
            differs(root.pointer(rule.as_str().unwrap().trim_start_matches('#')).unwrap(), value, root, at)
        }
        "type" => unless(is_type(rule.as_str().unwrap(), value)),
        "const" => unless(rule == value),
        "enum" => unless(rule.as_array().unwrap().contains(value)),
        "minimum" => unless(value.as_f64().is_none_or(|it| it >= rule.as_f64().unwrap())),
        "maximum" => unless(value.as_f64().is_none_or(|it| it <= rule.as_f64().unwrap())),
        "minItems" => unless(items.len() as u64 >= rule.as_u64().unwrap()),
        "maxItems" => unless(items.len() as u64 <= rule.as_u64().unwrap()),
        "required" => {
            unless(rule.as_array().unwrap().iter().all(|key| value.get(key.as_str().unwrap()).is_some()))
        }
        "items" => items.iter().enumerate().find_map(|(idx, it)| inside(rule, it, &idx.to_string())),
        "properties" => {
            rule.as_object().unwrap().iter().find_map(|(key, rule)| inside(rule, value.get(key)?, key))
        }
        "additionalProperties" => value.as_object()?.iter().find_map(|(key, it)| inside(rule, it, key)),
        "oneOf" => unless(
            rule.as_array().unwrap().iter().filter(|it| differs(it, value, root, at).is_none()).count() == 1,
        ),
        other => Some(format!("the checker does not know `{other}`")),
    }
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => unreachable!("{other}"),
    }
}
