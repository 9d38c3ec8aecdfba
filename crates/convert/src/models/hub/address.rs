//! Addresses: their parts, redirections and escapes.

/// Protocol, host and port of an address.
pub(super) fn authority(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url.get(start..).and_then(|rest| rest.find(['/', '?', '#']));
    url.get(..end.map_or(url.len(), |end| start + end)).unwrap_or(url)
}

/// Host and port of an address.
pub(super) fn host(url: &str) -> &str {
    let whole = authority(url);
    let host = whole.split_once("://").map_or(whole, |(_, host)| host);
    // Without a password.
    host.rsplit_once('@').map_or(host, |(_, host)| host)
}

/// Where `location` leads from `url`.
pub(super) fn joined(url: &str, location: &str) -> String {
    // A query may hold an address too.
    let protocol = |p: &str| {
        !p.is_empty()
            && p.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    };
    if location.split_once("://").is_some_and(|(p, _)| protocol(p)) {
        return location.to_owned();
    }
    let base = authority(url);
    if let Some(rest) = location.strip_prefix("//") {
        let protocol = base.split_once("://").map_or("https", |(p, _)| p);
        return format!("{protocol}://{rest}");
    }
    if location.starts_with('/') {
        return format!("{base}{location}");
    }
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let folder = path.rsplit_once('/').map_or(base, |(folder, _)| folder);
    let folder = if folder.len() < base.len() { base } else { folder };
    format!("{folder}/{location}")
}

/// A name as it stands in an address.
pub(super) fn escaped(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~' | b'/');
    let mut out = String::new();
    for b in name.bytes() {
        if plain(b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests;
