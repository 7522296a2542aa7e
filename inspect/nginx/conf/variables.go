package conf

import (
	"slices"
	"strings"
)

// IsNameByte reports whether a variable's name may contain c.
func IsNameByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// requestParts lists variables that a client, or an upstream's answer, supplies. A "_" at the end matches any rest.
var requestParts = strings.Fields(`arg_ args content_length content_type cookie_ document_uri host http_ invalid_referer is_args
	proxy_add_via proxy_add_x_forwarded_for proxy_protocol_addr proxy_protocol_port proxy_protocol_server_addr
	proxy_protocol_server_port proxy_protocol_tlv_ query_string realip_remote_addr remote_user request request_body
	request_body_file request_filename request_length request_method request_port is_request_port request_uri
	sent_http_ sent_trailer_ server_protocol slice_range ssl_alpn_protocol ssl_client_cert ssl_client_escaped_cert
	ssl_client_i_dn ssl_client_i_dn_legacy ssl_client_raw_cert ssl_client_s_dn ssl_client_s_dn_legacy ssl_client_serial
	ssl_preread_alpn_protocols ssl_preread_server_name ssl_server_name uid_got upstream_cookie_ upstream_http_
	upstream_trailer_ uri`)

// otherVariables lists nginx's other variables (https://nginx.org/en/docs/varindex.html).
var otherVariables = strings.Fields(`ancient_browser binary_remote_addr body_bytes_sent bytes_received bytes_sent connection
	connection_requests connection_time connections_active connections_reading connections_waiting connections_writing
	date_gmt date_local document_root fastcgi_path_info fastcgi_script_name geoip_area_code geoip_city
	geoip_city_continent_code geoip_city_country_code geoip_city_country_code3 geoip_city_country_name geoip_country_code
	geoip_country_code3 geoip_country_name geoip_dma_code geoip_latitude geoip_longitude geoip_org geoip_postal_code
	geoip_region geoip_region_name gzip_ratio hostname http2 http3 https limit_conn_status limit_rate limit_req_status
	memcached_key modern_browser msec msie nginx_version pid pipe protocol proxy_host proxy_port realip_remote_port
	realpath_root remote_addr remote_port request_completion request_id request_time scheme secure_link
	secure_link_expires server_addr server_name server_port session_time ssl_cipher ssl_ciphers ssl_client_fingerprint
	ssl_client_sigalg ssl_client_v_end ssl_client_v_remain ssl_client_v_start ssl_client_verify ssl_curve ssl_curves
	ssl_early_data ssl_ech_outer_server_name ssl_ech_status ssl_preread_protocol ssl_protocol ssl_session_id
	ssl_session_reused ssl_sigalg ssl_sigalgs status tcpinfo_rcv_space tcpinfo_rtt tcpinfo_rttvar tcpinfo_snd_cwnd
	time_iso8601 time_local uid_reset uid_set upstream_addr upstream_bytes_received upstream_bytes_sent
	upstream_cache_etag upstream_cache_last_modified upstream_cache_status upstream_connect_time upstream_first_byte_time
	upstream_header_time upstream_response_length upstream_response_time upstream_session_time upstream_status`)

// FromRequest reports whether the request or an upstream's answer supplies a variable, named without its "$" and in
// lower case.
func FromRequest(name string) bool { return listed(requestParts, name) }

// KnownVariable reports whether nginx or one of its own modules has a variable, named without its "$" and in lower
// case.
func KnownVariable(name string) bool {
	return listed(requestParts, name) || listed(otherVariables, name)
}

func listed(list []string, name string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		return entry == name || strings.HasSuffix(entry, "_") && strings.HasPrefix(name, entry)
	})
}
